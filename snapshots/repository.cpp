#include "snapshots/repository.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "policy/fault.h"
#include "snapshots/blob_stream.h"
#include "snapshots/disk.h"
#include "snapshots/git.h"
#include "snapshots/io.h"
#include "snapshots/loose_reader.h"
#include "snapshots/mapped_reads.h"
#include "snapshots/pack_index.h"
#include "snapshots/store.h"

namespace okcvm::snapshots {
namespace {

git_object_t native_kind(ObjectKind kind) {
  return static_cast<git_object_t>(kind);
}

constexpr std::string_view kCannotOpen = "the snapshot repository cannot be opened";

Error damaged(const Oid& oid) {
  return Error::of(Code::kCorrupt,
                   "object " + oid.hex() + " is missing or damaged; `okcvm verify` lists what is lost");
}

bool sync(const std::filesystem::path& path) {
  const FileDescriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return opened && ::fsync(opened.get()) == 0;
}

/// libgit2 does not see to it that the files a repository begins with reach the disk; without them, stock git
/// does not know it for one.
bool sync_all(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error))
    if ((entry->is_regular_file(error) || entry->is_directory(error)) && !sync(entry->path())) return false;
  return !error && sync(folder);
}

/// Git holds its locks for moments: an old one is that of a process that was killed.
bool remove_left_lock(int folder, const std::string& name) {
  constexpr time_t kOld = 60;  // seconds
  struct stat status {};
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return ::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         now.tv_sec - status.st_mtim.tv_sec > kOld && ::unlinkat(folder, name.c_str(), 0) == 0;
}

// libgit2 takes more than git for white space and for a name, and leaves quotes open.

bool has_other_space(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t' && c != '\r';
  });
}

bool is_config_to_git(const std::string& text) {
  bool starts_line = true;
  for (const char c : text) {
    if (starts_line && c >= '0' && c <= '9') return false;
    starts_line = c == '\n' || (starts_line && (c == ' ' || c == '\t'));
  }
  return !has_other_space(text) && std::count(text.begin(), text.end(), '"') % 2 == 0;
}

std::set<std::string> packs_of(int repository) {
  std::set<std::string> names;
  const FileDescriptor folder(
      ::openat(repository, "objects/pack", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  const auto rows = folder ? rows_in(folder.get()) : Result<std::vector<DiskRow>>();
  if (!rows) return names;
  for (const auto& row : *rows)
    if (row.name.ends_with(".pack")) names.insert(row.name);
  return names;
}

}  // namespace

struct Repository::Handles {
  git::RepositoryHandle repository;
  git::OdbHandle odb;

  static std::unique_ptr<Handles> open(const std::filesystem::path& folder) {
    auto handles = std::make_unique<Handles>();
    git_repository* repository = nullptr;
    const unsigned flags = GIT_REPOSITORY_OPEN_NO_SEARCH | GIT_REPOSITORY_OPEN_BARE;
    if (git_repository_open_ext(&repository, folder.c_str(), flags, nullptr) != 0) return nullptr;
    handles->repository.reset(repository);
    git_odb* odb = nullptr;
    if (git_repository_odb(&odb, repository) != 0) return nullptr;
    handles->odb.reset(odb);
    return handles;
  }
};

Oid hash_object(ObjectKind kind, std::string_view bytes) {
  git_oid oid{};
  git_odb_hash(&oid, bytes.data(), bytes.size(), native_kind(kind));
  return git::from_native(oid);
}

Repository::~Repository() = default;

Result<std::unique_ptr<Repository>> Repository::open(const std::filesystem::path& folder) {
  git::start();
  auto repository = std::unique_ptr<Repository>(new Repository());
  repository->path_ = folder;
  constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  repository->folder_ = FileDescriptor(::open(folder.c_str(), kFolder));
  if (!repository->folder_) return fail_errno(errno, kCannotOpen);
  if (auto opened = repository->reopen(); !opened) return fail(opened.error());
  const int fd = repository->folder_.get();
  if (::mkdirat(fd, kOwnFolder, 0700) != 0 && errno != EEXIST) return fail_errno(errno, kCannotOpen);
  repository->own_folder_ = FileDescriptor(::openat(fd, kOwnFolder, kFolder));
  if (!repository->own_folder_) return fail_errno(errno, kCannotOpen);
  if (::mkdirat(repository->own_folder_.get(), kIncoming, 0700) != 0 && errno != EEXIST)
    return fail_errno(errno, kCannotOpen);
  return repository;
}

Result<std::unique_ptr<Repository>> Repository::create(const std::filesystem::path& folder) {
  git::start();
  const auto draft = draft_of(folder);
  std::error_code error;
  std::filesystem::remove_all(draft, error);
  fault_point("repository.create");
  if (const int injected = fault_error("repository.create"))
    return fail_errno(injected, "the snapshot repository cannot be made");

  git_repository_init_options options;
  git_repository_init_options_init(&options, GIT_REPOSITORY_INIT_OPTIONS_VERSION);
  options.flags = GIT_REPOSITORY_INIT_BARE | GIT_REPOSITORY_INIT_MKPATH;
  options.initial_head = "main";
  options.mode = 0700;
  git_repository* repository = nullptr;
  if (git_repository_init_ext(&repository, draft.c_str(), &options) != 0) {
    auto failed = git::last_error(Code::kInternal, "the snapshot repository cannot be made");
    std::filesystem::remove_all(draft, error);
    return fail(std::move(failed));
  }
  git_repository_free(repository);
  std::filesystem::create_directories(draft / kOwnFolder / kIncoming, error);
  if (!error) std::filesystem::permissions(draft, std::filesystem::perms::owner_all, error);
  if (error) return fail_errno(error.value(), "the snapshot repository cannot be made");
  // Now, as later there may be no room left for it.
  if (const auto lock = (draft / kOwnFolder / kLock).string();
      !FileDescriptor(::open(lock.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)))
    return fail_errno(errno, "the snapshot repository cannot be made");
  if (!sync_all(draft)) return fail_errno(errno, "the snapshot repository cannot be made");
  fault_point("repository.publish");
  std::filesystem::rename(draft, folder, error);
  if (error) return fail_errno(error.value(), "the snapshot repository cannot be made");
  if (!sync(folder.parent_path())) return fail_errno(errno, "the snapshot repository cannot be made");
  return open(folder);
}

Result<std::string> Repository::read(const Oid& oid, ObjectKind kind) const {
  const MappedReads reads;
  git_odb_object* raw = nullptr;
  const int status = git_odb_read(&raw, handles_->odb.get(), &git::native(oid));
  const git::ObjectHandle object(raw);
  has_failed_ |= status != 0;
  if (status != 0 || git_odb_object_type(raw) != native_kind(kind)) return fail(damaged(oid));
  return std::string(static_cast<const char*>(git_odb_object_data(raw)), git_odb_object_size(raw));
}

Result<void> Repository::read_stream(const Oid& oid,
                                     const std::function<Result<void>(std::string_view)>& sink) const {
  // Everything large is stored loose. What is not there is small, or was packed by git, and is held whole.
  const std::string hex = oid.hex();
  FileDescriptor file(::openat(folder_.get(), ("objects/" + hex.substr(0, 2) + "/" + hex.substr(2)).c_str(),
                               O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    auto bytes = read(oid, ObjectKind::kBlob);
    if (!bytes) return fail(bytes.error());
    return sink(*bytes);
  }
  LooseReader reader(std::move(file));
  const auto size = reader.begin();
  if (!size) return fail(damaged(oid));
  auto check = BlobStream::hash_only(*size);
  if (!check) return fail(check.error());
  while (true) {
    const auto piece = reader.next();
    if (!piece) return fail(damaged(oid));
    if (piece->empty()) break;
    if (auto fed = check->write(*piece); !fed) return fail(fed.error());
    if (auto taken = sink(*piece); !taken) return fail(taken.error());
  }
  auto name = check->finish();
  if (!name) return fail(name.error());
  if (*name != oid) return fail(damaged(oid));
  return {};
}

bool Repository::contains(const Oid& oid) const {
  const MappedReads reads;
  return git_odb_exists_ext(handles_->odb.get(), &git::native(oid), GIT_ODB_LOOKUP_NO_REFRESH) == 1;
}

bool Repository::holds(const Oid& oid) const {
  if (!contains(oid)) return false;
  const std::string hex = oid.hex();
  const std::string loose = "objects/" + hex.substr(0, 2) + "/" + hex.substr(2);
  if (::faccessat(folder_.get(), loose.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0)
    return read_stream(oid, [](std::string_view) { return Result<void>(); }).has_value();
  const MappedReads reads;
  git_odb_object* raw = nullptr;
  const int status = git_odb_read(&raw, handles_->odb.get(), &git::native(oid));
  const git::ObjectHandle object(raw);
  return status == 0;
}

Result<std::optional<Oid>> Repository::ref(const char* name) const {
  git_oid oid{};
  errno = 0;
  const int status = git_reference_name_to_id(&oid, handles_->repository.get(), name);
  if (status == GIT_ENOTFOUND) return std::optional<Oid>();
  if (status != 0)
    return fail(
        git::last_error(Code::kCorrupt, "the ref " + std::string(name) + " of the snapshots cannot be read"));
  return std::optional(git::from_native(oid));
}

Result<std::optional<Oid>> Repository::spare_ref(const char* name) const {
  auto found = ref(name);
  if (found || found.error().code != Code::kCorrupt || ::unlinkat(folder_.get(), name, 0) != 0) return found;
  return std::optional<Oid>();
}

Result<void> Repository::move_ref(const char* name, const std::optional<Oid>& from, const Oid& to) {
  fault_point("repository.move_ref");
  if (const int injected = fault_error("repository.move_ref"))
    return fail_errno(injected, "a ref cannot be moved");
  const MappedReads reads;
  const auto move = [&] {
    git_reference* raw = nullptr;
    const int moved =
        from ? git_reference_create_matching(&raw, handles_->repository.get(), name, &git::native(to), 1,
                                             &git::native(*from), nullptr)
             : git_reference_create(&raw, handles_->repository.get(), name, &git::native(to), 0, nullptr);
    const git::ReferenceHandle reference(raw);
    return moved;
  };
  int status = move();
  if (status == GIT_ELOCKED && remove_left_lock(folder_.get(), std::string(name) + ".lock")) status = move();
  if (status == GIT_ELOCKED)
    return fail(Code::kBusy,
                "git is at work in the session's repository, or was killed there: try again, if "
                "need be in a minute, when " +
                    std::string(name) + ".lock counts as left over");
  if (status == GIT_EMODIFIED || status == GIT_ENOTFOUND || status == GIT_EEXISTS)
    return fail(Code::kBusy, "someone else moved the snapshots meanwhile; try again");
  if (status != 0) return fail(git::last_error(Code::kInternal, "a ref cannot be moved"));
  return {};
}

std::vector<std::string> Repository::problems_for_git() const {
  std::vector<std::string> problems;
  git_oid oid{};
  const bool has_main = git_reference_name_to_id(&oid, handles_->repository.get(), kMainRef) == 0;
  const bool has_head = git_reference_name_to_id(&oid, handles_->repository.get(), "HEAD") == 0;
  const auto head = read_file(folder_.get(), "HEAD");
  if (has_main && (!has_head || !head || has_other_space(*head)))
    problems.push_back("HEAD leads nowhere, so that stock git finds no snapshots: write \"ref: " +
                       std::string(kMainRef) + "\" to HEAD in the session's repository");

  const auto text = read_file(folder_.get(), "config");
  git_config* raw_config = nullptr;
  const int opened = git_repository_config_snapshot(&raw_config, handles_->repository.get());
  const git::ConfigHandle config(raw_config);
  const auto is_boolean = [&](const char* name) {
    int value = 0;
    const int got = git_config_get_bool(&value, raw_config, name);
    return got == 0 || got == GIT_ENOTFOUND;
  };
  if (opened != 0 || !is_boolean("core.bare") || !is_boolean("core.filemode") || !text ||
      !is_config_to_git(*text))
    problems.push_back(
        "stock git cannot read config in the session's repository: take the one of another session's");
  return problems;
}

std::vector<std::string> Repository::advice_on_indexes() const {
  std::vector<std::string> advice;
  const auto advise = [&advice](const std::string& pack, const std::string& problem) {
    advice.push_back(problem + "`git index-pack " + pack + "` in the session's repository makes it anew");
  };
  for (const auto& name : packs_of(folder_.get())) {
    const auto pack = std::filesystem::path("objects/pack") / name;
    const auto index = std::filesystem::path(pack).replace_extension(".idx");
    if (::faccessat(folder_.get(), index.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0)
      advise(pack, pack.string() + " has no index: ");
    else if (is_damaged_index(folder_.get(), index))
      advise(pack, index.string() + " is damaged: remove it, then ");
  }
  return advice;
}

bool Repository::is_at(const std::filesystem::path& path) const {
  struct stat opened {};
  struct stat standing {};
  return ::fstat(folder_.get(), &opened) == 0 && ::stat(path.c_str(), &standing) == 0 &&
         opened.st_dev == standing.st_dev && opened.st_ino == standing.st_ino &&
         ::faccessat(folder_.get(), kOwnFolder, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

Repository::Place Repository::place() const {
  struct stat status {};
  return ::fstat(folder_.get(), &status) == 0 ? Place(status.st_dev, status.st_ino) : Place();
}

void Repository::refresh() {
  const MappedReads reads;
  if (set_unsound_indexes_aside(folder_.get(), packs_)) git_odb_refresh(handles_->odb.get());
  packs_.merge(packs_of(folder_.get()));
}

Result<bool> Repository::notice_removed_packs() {
  auto now = packs_of(folder_.get());
  const bool went = !std::includes(now.begin(), now.end(), packs_.begin(), packs_.end());
  if (has_failed_ || !handles_ || went) {
    if (auto opened = open_anew(); !opened) return fail(opened.error());
    return went;
  }
  packs_ = std::move(now);
  return false;
}

void Repository::close() {
  handles_.reset();
}

Result<void> Repository::open_anew() {
  close();  // first: what is opened beside it would share its maps
  return reopen();
}

Result<void> Repository::reopen() {
  const MappedReads reads;
  will_lose_packs();
  auto packs = packs_of(folder_.get());
  if (const int injected = fault_error("repository.reopen")) return fail_errno(injected, kCannotOpen);
  auto handles = set_unsound_indexes_aside(folder_.get()) ? Handles::open(path_) : nullptr;
  if (!handles) return fail(git::last_error(Code::kCorrupt, std::string(kCannotOpen)));
  handles_ = std::move(handles);
  packs_ = std::move(packs);
  has_failed_ = false;
  return {};
}

}  // namespace okcvm::snapshots
