// Files on their way in: staged without a name, or out of sight, then put in place by one rename.

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <memory>
#include <string>

#include "fusefs/caller_rights.h"
#include "fusefs/path_files.h"
#include "policy/fault.h"
#include "policy/random_bits.h"

namespace okcvm::fusefs {
namespace {

constexpr mode_t kParentMode = 0755;
constexpr mode_t kFileMode = 0644;
constexpr int kMaxVariants = 10000;
constexpr std::string_view kPrefix = ".incoming-";

/// "report.tar.gz" as "report.tar (3).gz": the number goes before the last extension.
std::string variant_of(const std::string& name, int number) {
  const auto dot = name.rfind('.');
  const auto stem = dot == name.npos || dot == 0 ? name.size() : dot;
  return name.substr(0, stem) + " (" + std::to_string(number) + ")" + name.substr(stem);
}

/// One that no daemon has left behind.
std::string staging_name() {
  return std::string(kPrefix) + random_name();
}

bool is_unwritten(const Workspace& workspace, Zone zone) {
  if (zone == Zone::kWorkdir || workspace.has_made(zone)) return false;
  const auto folder = workspace.open_zone(zone);
  return !folder && folder.error().errno_value == ENOENT;
}

/// Of the file itself: by its name another one may be found already.
Result<FileInfo> info_of_placed(int file, const RelPath& path) {
  Entry entry;
  struct stat& status = entry.attributes;
  if (::fstat(file, &status) != 0) return fail_errno(errno);
  const bool is_in_workdir = zone_named(path.top()) == Zone::kWorkdir;
  status.st_ino = shown_inode(is_in_workdir ? kWorkdirVolume : kWorkspaceVolume, status.st_ino);
  return info_of_entry(entry, std::string(path.leaf()));
}

}  // namespace

struct PathFiles::Incoming {
  Caller caller;
  RelPath path;
  std::optional<mode_t> mode;
  IfExists if_exists;
  EntryCheck check;
  FileDescriptor folder;  // where it is staged
  std::string staged;     // its name there
  FileDescriptor file = {};
  bool is_named = false;                     // it has its name by now
  std::optional<struct stat> replaced = {};  // the regular file whose place it takes
};

class PathFiles::StagedFile final : public IncomingFile {
 public:
  StagedFile(PathFiles& files, Incoming incoming) : files_(files), incoming_(std::move(incoming)) {}
  ~StagedFile() override {
    if (incoming_.is_named) ::unlinkat(incoming_.folder.get(), incoming_.staged.c_str(), 0);
  }
  int descriptor() const override { return incoming_.file.get(); }
  Result<PublishedFile> publish() override { return files_.publish(incoming_); }

 private:
  PathFiles& files_;
  Incoming incoming_;
};

Result<std::unique_ptr<IncomingFile>> PathFiles::create(const Caller& caller, const RelPath& path,
                                                        std::optional<mode_t> mode, IfExists if_exists,
                                                        EntryCheck check) {
  wait_for_file_system(path.text());
  Gate::Pass pass(gates_.managed);
  const Zone zone = zone_named(path.top());
  if (path.is_root() || rule_of(zone).write_error)
    return fail(Code::kReadOnly,
                "this part of the session is read-only; write below uploads/, outputs/ or temp/",
                path.text());
  if (zone == Zone::kWorkdir && !workspace_.has_workdir())
    return fail(Code::kNotFound, "no workdir is bound");
  if (path.depth() == 1)
    return fail(Error{Code::kInvalidRequest, EISDIR, "a directory stands at this path", path.text()});
  if (check && is_unwritten(workspace_, zone))  // where nothing can be, and a refusal makes no folder
    if (auto met = check(nullptr, nullptr); !met) return fail(met.error());
  if (auto ready = operations_.make_zone(zone); !ready) return explained(ready.error(), path.text());
  // Beside the zones of the workspace, where the mount does not show it; in a workdir there is no such place.
  auto folder = zone == Zone::kWorkdir ? workspace_.open_zone(zone) : workspace_.open_folder();
  if (!folder) return explained(folder.error(), path.text());
  Incoming incoming{caller, path, mode, if_exists, std::move(check), std::move(*folder), staging_name()};
  // Without a name it goes with us, whatever happens. Not every file system has that.
  incoming.file =
      FileDescriptor(::openat(incoming.folder.get(), ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600));
  if (!incoming.file && (errno == EOPNOTSUPP || errno == EISDIR)) {
    incoming.file = FileDescriptor(::openat(incoming.folder.get(), incoming.staged.c_str(),
                                            O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    incoming.is_named = static_cast<bool>(incoming.file);
  }
  if (!incoming.file) return explained(Error::plain(errno), path.text());
  return std::make_unique<StagedFile>(*this, std::move(incoming));
}

void PathFiles::remove_leftovers() {
  auto folder = workspace_.open_folder();
  if (!folder) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(folder->get()), ::closedir);
  if (!listing) return;
  const int directory = folder->release();
  while (const dirent* row = ::readdir(listing.get()))
    if (std::string_view(row->d_name).starts_with(kPrefix)) ::unlinkat(directory, row->d_name, 0);
}

Result<void> PathFiles::put(Incoming& incoming, const Walk& parent, const std::string& name, unsigned flags) {
  const struct stat& directory = parent.last().attributes;
  const auto& replaced = incoming.replaced;
  const bool keeps_owner = replaced && incoming.caller.uid == 0;  // root writes for whose it is
  const uid_t uid = keeps_owner ? replaced->st_uid : incoming.caller.uid;
  const gid_t gid = keeps_owner                     ? replaced->st_gid
                    : (directory.st_mode & S_ISGID) ? directory.st_gid
                                                    : incoming.caller.gid;
  const mode_t mode = incoming.mode.value_or(replaced ? replaced->st_mode & 0777 : kFileMode);
  if (::fchown(incoming.file.get(), uid, gid) != 0 || ::fchmod(incoming.file.get(), mode & 07777) != 0)
    return fail_errno(errno);
  // The file system's own clock stands still for milliseconds, and inode numbers come again: files that
  // replace each other would look the same.
  std::array<timespec, 2> times{timespec{0, UTIME_OMIT}, timespec{}};
  if (::clock_gettime(CLOCK_REALTIME, &times[1]) != 0 || ::futimens(incoming.file.get(), times.data()) != 0)
    return fail_errno(errno);
  if (!incoming.is_named) {
    if (::linkat(incoming.file.get(), "", incoming.folder.get(), incoming.staged.c_str(), AT_EMPTY_PATH) != 0)
      return fail_errno(errno);
    incoming.is_named = true;
    fault_point("incoming.named");
  }
  auto done =
      operations_.put(incoming.folder.get(), incoming.staged.c_str(), parent.last().id, name.c_str(), flags);
  if (done) incoming.is_named = false;
  return done;
}

Result<PublishedFile> PathFiles::publish_alone(Incoming& incoming, Zone closed,
                                               std::vector<Placed>& changed) {
  const MutexLock settled(publishing_);
  const ClosedFor alone(closed, gates_);
  auto parent = walk_making(incoming.caller, incoming.path.parent(), {kParentMode, changed, closed});
  if (!parent) return fail(parent.error());
  if (auto fit = check_gates(*parent, closed); !fit) return fail(fit.error());
  const Entry& directory = parent->last();
  if (!S_ISDIR(directory.attributes.st_mode))
    return fail(
        Error{Code::kInvalidRequest, ENOTDIR, "a part of the path is not a directory", incoming.path.text()});
  if (!may(incoming.caller, directory.attributes, W_OK | X_OK))
    return fail(Code::kForbidden, "this user may not write to the directory", incoming.path.text());

  std::string name(incoming.path.leaf());
  auto existing = look_up(directory.id, name.c_str());
  if (!existing) return explained(existing.error(), incoming.path.text());
  const bool exists = existing->id.value != 0;
  Walk held(operations_);  // keeps the node until what stands there is replaced
  if (exists) held.entries.push_back(*existing);
  if (exists && incoming.if_exists == IfExists::kReplace) {
    if (S_ISDIR(existing->attributes.st_mode))
      return fail(
          Error{Code::kInvalidRequest, EISDIR, "a directory stands at this path", incoming.path.text()});
    if (!may_remove(incoming.caller, directory.attributes, existing->attributes))
      return fail(Code::kForbidden, "this user may not replace the file", incoming.path.text());
  }
  if (incoming.check)
    if (auto allowed = judge(incoming.check, incoming.caller, incoming.path, exists ? &*existing : nullptr);
        !allowed)
      return fail(allowed.error());
  if (exists && S_ISREG(existing->attributes.st_mode) && incoming.if_exists == IfExists::kReplace)
    incoming.replaced = existing->attributes;
  const unsigned flags = incoming.if_exists == IfExists::kReplace ? 0 : RENAME_NOREPLACE;
  auto done = put(incoming, *parent, name, flags);
  for (int number = 1; !done && done.error().errno_value == EEXIST &&
                       incoming.if_exists == IfExists::kUnique && number < kMaxVariants;
       ++number) {
    name = variant_of(std::string(incoming.path.leaf()), number);
    auto valid = Name::parse(name);
    if (!valid) return fail(valid.error());
    if (operations_.status_at(directory.id, name.c_str())) continue;  // put() costs more
    done = put(incoming, *parent, name, flags);
  }
  if (!done) return explained(done.error(), incoming.path.text());
  changed.push_back({directory.id, *Name::parse(name)});
  auto placed = parent->path() / changed.back().name;
  auto info = info_of_placed(incoming.file.get(), placed);
  if (!info) return fail(info.error());
  return PublishedFile{std::move(placed), std::move(*info)};
}

Result<PublishedFile> PathFiles::publish(Incoming& incoming) {
  wait_for_file_system(incoming.path.text());
  const SessionState::Untold untold(state_);
  std::vector<Placed> changed;
  auto published =
      with_gates(incoming.path, [&](Zone closed) { return publish_alone(incoming, closed, changed); });
  for (const auto& placed : changed) tell_kernel(placed);
  if (published) operations_.forget_when_told(changed.back().directory, changed.back().name.text());
  kernel_.drain();
  return published;
}

}  // namespace okcvm::fusefs
