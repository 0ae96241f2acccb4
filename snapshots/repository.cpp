#include "snapshots/repository.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <system_error>

#include "policy/fault.h"
#include "snapshots/blob_stream.h"
#include "snapshots/git.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kChunk = 1 << 20;

git_object_t native_kind(ObjectKind kind) {
  return static_cast<git_object_t>(kind);
}

Error damaged(const Oid& oid) {
  return Error::of(Code::kCorrupt,
                   "object " + oid.hex() + " is missing or damaged; `okcvm verify` lists what is lost");
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
  constexpr std::string_view kWhat = "the snapshot repository cannot be opened";
  git::start();
  auto repository = std::unique_ptr<Repository>(new Repository());
  repository->path_ = folder;
  constexpr int kFolder = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  repository->folder_ = FileDescriptor(::open(folder.c_str(), kFolder));
  if (!repository->folder_) return fail_errno(errno, kWhat);
  repository->handles_ = Handles::open(folder);
  if (!repository->handles_) return fail(git::last_error(Code::kCorrupt, std::string(kWhat)));
  const int fd = repository->folder_.get();
  if (::mkdirat(fd, kOwnFolder, 0700) != 0 && errno != EEXIST) return fail_errno(errno, kWhat);
  repository->own_folder_ = FileDescriptor(::openat(fd, kOwnFolder, kFolder));
  if (!repository->own_folder_) return fail_errno(errno, kWhat);
  if (::mkdirat(repository->own_folder_.get(), kIncoming, 0700) != 0 && errno != EEXIST)
    return fail_errno(errno, kWhat);
  return repository;
}

Result<std::unique_ptr<Repository>> Repository::create(const std::filesystem::path& folder) {
  git::start();
  const std::filesystem::path draft = folder.string() + ".new";
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
  std::filesystem::permissions(draft, std::filesystem::perms::owner_all, error);
  fault_point("repository.publish");
  std::filesystem::rename(draft, folder, error);
  if (error) return fail_errno(error.value(), "the snapshot repository cannot be made");
  return open(folder);
}

Result<std::string> Repository::read(const Oid& oid, ObjectKind kind) const {
  git_odb_object* raw = nullptr;
  if (git_odb_read(&raw, handles_->odb.get(), &git::native(oid)) != 0) return fail(damaged(oid));
  const git::ObjectHandle object(raw);
  if (git_odb_object_type(raw) != native_kind(kind)) return fail(damaged(oid));
  return std::string(static_cast<const char*>(git_odb_object_data(raw)), git_odb_object_size(raw));
}

Result<void> Repository::read_stream(const Oid& oid,
                                     const std::function<Result<void>(std::string_view)>& sink) const {
  git_odb_stream* raw = nullptr;
  std::size_t size = 0;
  git_object_t type = GIT_OBJECT_INVALID;
  // Only loose objects can be streamed; everything large is stored loose for that reason.
  if (git_odb_open_rstream(&raw, &size, &type, handles_->odb.get(), &git::native(oid)) != 0) {
    auto bytes = read(oid, ObjectKind::kBlob);
    if (!bytes) return fail(bytes.error());
    return sink(*bytes);
  }
  const git::StreamHandle stream(raw);
  if (type != GIT_OBJECT_BLOB) return fail(damaged(oid));
  auto check = BlobStream::hash_only(size);
  if (!check) return fail(check.error());
  std::string chunk(kChunk, '\0');
  for (std::size_t left = size; left > 0;) {
    const int got = git_odb_stream_read(raw, chunk.data(), std::min(left, chunk.size()));
    if (got <= 0) return fail(damaged(oid));
    const std::string_view piece(chunk.data(), static_cast<std::size_t>(got));
    if (auto fed = check->write(piece); !fed) return fail(fed.error());
    if (auto taken = sink(piece); !taken) return fail(taken.error());
    left -= piece.size();
  }
  auto name = check->finish();
  if (!name) return fail(name.error());
  if (*name != oid) return fail(damaged(oid));
  return {};
}

bool Repository::contains(const Oid& oid) const {
  return git_odb_exists_ext(handles_->odb.get(), &git::native(oid), GIT_ODB_LOOKUP_NO_REFRESH) == 1;
}

std::optional<Oid> Repository::ref(const char* name) const {
  git_oid oid{};
  if (git_reference_name_to_id(&oid, handles_->repository.get(), name) != 0) return std::nullopt;
  return git::from_native(oid);
}

Result<void> Repository::move_ref(const char* name, const std::optional<Oid>& from, const Oid& to) {
  fault_point("repository.move_ref");
  if (const int injected = fault_error("repository.move_ref"))
    return fail_errno(injected, "a ref cannot be moved");
  git_reference* raw = nullptr;
  const int status =
      from ? git_reference_create_matching(&raw, handles_->repository.get(), name, &git::native(to), 1,
                                           &git::native(*from), nullptr)
           : git_reference_create(&raw, handles_->repository.get(), name, &git::native(to), 0, nullptr);
  const git::ReferenceHandle reference(raw);
  if (status == GIT_EMODIFIED || status == GIT_ELOCKED || status == GIT_ENOTFOUND || status == GIT_EEXISTS)
    return fail(Code::kBusy, "someone else moved the snapshots meanwhile; try again");
  if (status != 0) return fail(git::last_error(Code::kInternal, "a ref cannot be moved"));
  return {};
}

void Repository::refresh() {
  git_odb_refresh(handles_->odb.get());
}

Result<void> Repository::reopen() {
  auto handles = Handles::open(path_);
  if (!handles) return fail(git::last_error(Code::kCorrupt, "the snapshot repository cannot be opened"));
  handles_ = std::move(handles);
  return {};
}

}  // namespace okcvm::snapshots
