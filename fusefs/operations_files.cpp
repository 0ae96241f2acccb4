// Files: open, create, and what reaches us of reading and writing.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fusefs/caller_identity.h"
#include "fusefs/handout.h"
#include "fusefs/operations.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

bool wants_to_write(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY;
}

/// A write must clear these bits, which the kernel's own path cannot do for us: it writes as root.
bool has_privileges(const struct stat& status) {
  return (status.st_mode & S_ISUID) || (status.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP);
}

/// But this one it must not, and that path would, where the group is none of ours.
bool has_locking_bit(const struct stat& status) {
  return (status.st_mode & (S_ISGID | S_IXGRP)) == S_ISGID;
}

/// How many of these bytes a daemon that died has appended: those that stand where the file ended when it
/// began.
std::size_t appended_before(int file, Fact fact, std::span<const std::byte> bytes) {
  if (!fact) return 0;
  std::vector<std::byte> there(bytes.size());
  const ssize_t got = ::pread(file, there.data(), there.size(), fact.old_size());
  if (got <= 0 || !std::equal(there.begin(), there.begin() + got, bytes.begin())) return 0;
  return static_cast<std::size_t>(got);
}

/// Whether the host lets nobody write to a file but at its end (chattr +a).
bool is_append_only(int file) {
  struct statx status {};
  return ::statx(file, "", AT_EMPTY_PATH, STATX_TYPE, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_APPEND);
}

/// lseek(2) where all is data, which it may always say.
Result<off_t> seek_in_one_piece(off_t size, off_t offset, int whence) {
  if (offset < 0 || offset >= size) return fail_errno(ENXIO);
  return whence == SEEK_HOLE ? size : offset;
}

}  // namespace

/// A regular file of a node. A device or FIFO that the host put into the workdir is not opened from here.
Result<FileDescriptor> Operations::open_backing(const Node& node, int flags) {
  if (!S_ISREG(node.type)) return fail_errno(EINVAL);
  auto file = open_inode(node, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  // A snapshot that reads the file holds a lease on it for a moment (fcntl(2), F_SETLEASE): wait for that.
  // The host may hold one for long.
  if (!file && file.error().errno_value == EWOULDBLOCK && !rule_of(node.zone).changes_underneath)
    file = open_inode(node, flags | O_NOFOLLOW | O_NOCTTY);
  return file;
}

Result<FileDescriptor> Operations::open_writable(const Node& node) {
  auto file = open_backing(node, O_RDWR);
  if (!file && file.error().errno_value == EPERM) return open_backing(node, O_RDWR | O_APPEND);
  return file;
}

Result<std::shared_ptr<FileDescriptor>> Operations::data_file(const Node& node, Access access) {
  if (auto held = backings_.file(node.id, access)) return held;
  auto file = access == Access::kWrite ? open_writable(node) : open_backing(node, O_RDONLY);
  if (!file && file.error().errno_value == EWOULDBLOCK)  // read(2) and write(2) cannot say so
    file = open_inode(node, (access == Access::kWrite ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NOCTTY);
  if (!file) return fail(file.error());
  auto shared = std::make_shared<FileDescriptor>(std::move(*file));
  // After a take-over an open file has no descriptor here until it is used. Files passed through stay
  // without.
  if (nodes_.open_state(node.id).backing_id == 0) backings_.remember_file(node.id, shared);
  return shared;
}

Result<Opened> Operations::register_open(const Request& request, const Node& node, FileDescriptor file,
                                         const struct stat* known, int flags) {
  const bool is_shared = rule_of(node.zone).changes_underneath;
  if ((flags & O_NONBLOCK) && wants_to_write(flags))
    if (const auto volume = workspace_.volume(node.key.volume))
      expect_nonblocking_writer(volume->device(), node.key.inode);
  auto use =
      backings_.opened(node.id, flags, is_shared, [&](Backings::Purpose purpose) -> Result<FileDescriptor> {
        if (purpose == Backings::Purpose::kPass) {
          // Only for its path: the kernel opens it anew for each open, as that asks for. So what is kept does
          // not count as a writer.
          auto opened = file ? Result<FileDescriptor>(std::move(file)) : open_backing(node, O_RDONLY);
          if (!opened) return opened;
          struct stat status {};
          if (!known && ::fstat(opened->get(), &status) != 0) return fail_errno(errno);
          if (has_privileges(known ? *known : status)) return FileDescriptor();
          if (is_shared && has_locking_bit(known ? *known : status)) return FileDescriptor();
          if (is_shared && is_append_only(opened->get())) return FileDescriptor();
          return opened;
        }
        // What can write serves reads, too. But the host cannot run a file that is held for writing.
        if (!wants_to_write(flags)) return open_backing(node, O_RDONLY);
        if (file && !state_.passthrough()) return std::move(file);
        return open_writable(node);
      });
  if (!use) return fail(use.error());
  // Stores through a mapping change what the kernel was told of a file that is not new.
  if ((flags & O_ACCMODE) == O_RDWR && use->backing_id && !known) kernel_.attributes_now(node.id);
  auto id = state_.add_file({node.id, flags}, request.unique);
  if (!id) {
    backings_.closed(node.id, flags);
    return fail(id.error());
  }
  Opened opened;
  opened.file = *id;
  opened.backing_id = use->backing_id;
  opened.not_needed = std::move(use->not_needed);
  opened.keep_cache = !state_.passthrough() && !is_shared;
  opened.direct = is_shared && use->file && wants_to_write(flags) && is_append_only(use->file->get());
  return opened;
}

Opened Operations::opened_before(FileId file, NodeId id) const {
  Opened opened;
  opened.file = file;
  opened.backing_id = nodes_.open_state(id).backing_id;
  return opened;
}

Result<void> Operations::judge_open(const Request& request, const Node& node, int flags) {
  constexpr int kRuns = 040;  // FMODE_EXEC, as execve(2) opens
  if (!is_judged_again(request, node.zone)) return {};
  const auto file = attribute_file(node);
  if (!file) return fail(file.error());
  const bool writes = wants_to_write(flags) || (flags & O_TRUNC);
  const bool reads = (flags & O_ACCMODE) != O_WRONLY;
  const mode_t to_read = flags & kRuns ? S_IXOTH : S_IROTH;
  if (may_still(request, node.zone, (*file)->get(), (reads ? to_read : 0) | (writes ? S_IWOTH : 0)))
    return {};
  return fail_errno(EACCES);
}

Result<Opened> Operations::open(const Request& request, NodeId id, int flags) {
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  const bool changes = wants_to_write(flags) || (flags & O_TRUNC);
  if (changes)
    if (const int error = rule_of(node->zone).write_error)
      return deny("open", node->parent, node->name.c_str(), error);
  if (id == kMetadataNode) return Opened{};
  const auto known = request.may_have_run ? state_.file_opened_by(request.unique) : std::nullopt;
  if (auto judged = judge_open(request, *node, flags); !judged) return fail(judged.error());
  // The kernel says EIO where it cannot open what is passed through, whatever the reason (a file that the
  // host made immutable, a file system that became read-only), and held files were opened when it may have
  // been another thing.
  auto writable = wants_to_write(flags) && !known ? open_backing(*node, flags & (O_ACCMODE | O_APPEND))
                                                  : Result<FileDescriptor>();
  if (!writable) return fail(writable.error());
  if (changes) recorder_.record(*node, ChangeKind::kContent);
  auto opened =
      known ? Result<Opened>(opened_before(*known, id)) : register_open(request, *node, {}, nullptr, flags);
  if (!opened || !(flags & O_TRUNC)) return opened;
  SetAttributes truncation;
  truncation.size = 0;
  truncation.writable = writable->get();
  auto applied = set_attributes(request, id, truncation);
  if (!applied) {
    release(opened->file);
    return fail(applied.error());
  }
  return opened;
}

Result<std::pair<Entry, Opened>> Operations::create(const Request& request, NodeId parent, const char* name,
                                                    mode_t mode, int flags) {
  auto place = place_for_change(request, parent, name, "create");
  if (!place) return fail(place.error());
  const Directory& directory = **place;
  recorder_.record_entry(directory, name);
  const int how = (state_.passthrough() ? O_RDONLY : O_RDWR) | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  before_making(request);
  mode = judged_mode(request, directory, mode);
  const auto make = [&] { return ::openat(directory.file.get(), name, how | O_EXCL, mode); };
  FileDescriptor file(with_faults("backing.create", [&] { return as_caller(request, make); }));
  if (!file && errno == EEXIST) {
    if (was_made_before(request, directory, name))
      file = FileDescriptor(::openat(directory.file.get(), name, how & ~O_CREAT));
    else  // made since the kernel looked, which looks again for ESTALE and checks what it opens then
      return fail_errno(flags & O_EXCL ? EEXIST : ESTALE);
  }
  if (!file) return fail_errno(errno);
  auto entry = finish_new(request, directory, name, (mode & 07777) | S_IFREG, file.get());
  if (!entry) return fail(entry.error());

  if (request.may_have_run)
    if (const auto known = state_.file_opened_by(request.unique))
      return std::pair{*entry, opened_before(*known, entry->id)};
  auto made = open_new(request, *entry, std::move(file), flags);
  if (!made) take_back(directory, name, 0);
  return made;
}

Result<std::pair<Entry, Opened>> Operations::open_new(const Request& request, Entry entry,
                                                      FileDescriptor file, int flags) {
  auto node = nodes_.find(entry.id);
  auto opened = node ? register_open(request, *node, std::move(file), &entry.attributes, flags)
                     : Result<Opened>(fail(node.error()));
  if (!opened) {
    forget(entry.id, 1);
    return fail(opened.error());
  }
  // For the kernel's own look at what it opens. Nothing can be stored unseen before the file is made longer,
  // which the kernel sees.
  if ((flags & O_ACCMODE) == O_RDWR && opened->backing_id)
    entry.attributes_seconds = std::min(entry.attributes_seconds, kMomentSeconds);
  return std::pair{entry, std::move(*opened)};
}

std::optional<std::pair<Entry, Opened>> Operations::nameless_made_before(const Request& request) {
  if (!request.may_have_run) return std::nullopt;
  const auto id = state_.file_opened_by(request.unique);
  const auto file = id ? state_.file(*id) : std::nullopt;
  if (!file) return std::nullopt;
  auto node = nodes_.find(file->node);
  const auto inode =
      node ? open_inode(*node, O_PATH | O_NOFOLLOW) : Result<FileDescriptor>(fail(node.error()));
  struct stat status {};
  if (!inode || ::fstat(inode->get(), &status) != 0) {
    // Without passthrough, and it had no hidden name yet: it is gone, and the kernel never heard of it.
    release(*id);
    forget(file->node, 1);
    return std::nullopt;
  }
  Handout::keep(node->id);
  return std::pair{entry_of(*node, status), opened_before(*id, file->node)};
}

Result<std::pair<Entry, Opened>> Operations::create_nameless(const Request& request, NodeId parent,
                                                             mode_t mode, int flags) {
  if (auto made = nameless_made_before(request)) return std::move(*made);
  auto place = place_for_change(request, parent, "", "create");
  if (!place) return fail(place.error());
  const Directory& directory = **place;
  mode = judged_mode(request, directory, mode);
  const auto make = [&] { return ::openat(directory.file.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode); };
  FileDescriptor file(with_faults("backing.create", [&] { return as_caller(request, make); }));
  if (!file) return fail_errno(errno);
  auto entry = look_up_in(directory, "", file.get());
  if (!entry) return fail(entry.error());
  auto node = nodes_.find(entry->id);
  auto held = node ? open_inode(*node, O_PATH | O_NOFOLLOW) : Result<FileDescriptor>(fail(node.error()));
  if (!held) {
    forget(entry->id, 1);
    return fail(held.error());
  }
  const int inode = held->get();
  struct stat status = entry->attributes;
  status.st_ino = node->key.inode;
  name_is_gone(directory, "", status, std::move(*held));
  // What is passed through is opened again for reading alone.
  auto made = open_new(request, *entry, state_.passthrough() ? FileDescriptor() : std::move(file), flags);
  if (!made || made->second.backing_id) return made;
  orphans_.keep(entry->id, directory.zone, inode);
  if (::fstat(inode, &status) == 0) made->first.attributes.st_ctim = status.st_ctim;  // that changed it
  return made;
}

void Operations::hold_for_reading(NodeId id) {
  const auto node = nodes_.find(id);
  if (!node) return;
  if (auto file = open_backing(*node, O_RDONLY))
    backings_.remember_file(id, std::make_shared<FileDescriptor>(std::move(*file)));
}

void Operations::release(FileId id) {
  const auto file = state_.remove_file(id);
  if (!file) return;
  const OpenState left = backings_.closed(file->node, file->flags);
  if ((file->flags & O_NONBLOCK) && wants_to_write(file->flags) && !left.writers)
    if (const auto node = nodes_.find(file->node))
      if (const auto volume = workspace_.volume(node->key.volume))
        expect_no_nonblocking_writer(volume->device(), node->key.inode);
  if (wants_to_write(file->flags) && left.opens && !left.writers && !left.backing_id)
    hold_for_reading(file->node);
  if (left.dead && !left.opens)
    if (const auto node = nodes_.find(file->node)) make_room(node->id, node->key.volume);
  if (!state_.passthrough()) return;  // what was read stays with the kernel
  if (const auto directory = nodes_.outdated(file->node)) kernel_.inode(*directory);
}

// -- Data

Result<std::size_t> Operations::read(const Request& request, NodeId id, std::span<std::byte> into,
                                     off_t offset) {
  if (id == kMetadataNode) {
    std::shared_ptr<const std::string> text;
    {
      MutexLock lock(metadata_mutex_);
      text = metadata_;
    }
    if (offset < 0 || static_cast<std::size_t>(offset) >= text->size()) return 0;
    return text->copy(reinterpret_cast<char*>(into.data()), into.size(), static_cast<std::size_t>(offset));
  }
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  const AccessOrder::Read read(access_order_, id, request.unique);
  auto file = data_file(*node, Access::kRead);
  if (!file) return fail(file.error());
  FileDescriptor quiet;
  if (read.is_late())
    if (auto opened = open_backing(*node, O_RDONLY | O_NOATIME)) quiet = std::move(*opened);
  const int from = quiet ? quiet.get() : (*file)->get();
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t got =
        ::pread(from, into.data() + done, into.size() - done, offset + static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(errno);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

Result<std::size_t> Operations::write(const Request& request, NodeId id, std::span<const std::byte> from,
                                      off_t offset, int flags) {
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  // Where the host can write, too, the kernel does not know where the end is.
  const bool at_end = (flags & O_APPEND) && rule_of(node->zone).changes_underneath;
  auto file = data_file(*node, Access::kWrite);
  if (!file) return fail(file.error());
  std::size_t done =
      at_end && request.may_have_run ? appended_before((*file)->get(), request.noted, from) : 0;
  while (done < from.size()) {
    const iovec rest{const_cast<std::byte*>(from.data()) + done, from.size() - done};
    const ssize_t put = with_faults("backing.write", [&] {
      return ::pwritev2((*file)->get(), &rest, 1, offset + static_cast<off_t>(done), at_end ? RWF_APPEND : 0);
    });
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && done == 0) return fail_errno(errno);
    if (put <= 0) break;
    done += static_cast<std::size_t>(put);
  }
  fault_point("write.done");
  if (at_end) kernel_.inode(id);  // it has taken the bytes for those at `offset`
  if (request.kill_privileges)
    if (auto cleared = apply(request, *node, (*file)->get(), {}); !cleared) return fail(cleared.error());
  return done;
}

Fact Operations::append_fact(NodeId id, int flags) {
  if (!(flags & O_APPEND)) return {};
  const auto node = nodes_.find(id);
  if (!node || !rule_of(node->zone).changes_underneath) return {};
  const auto file = data_file(*node, Access::kWrite);
  struct stat status {};
  if (!file || ::fstat((*file)->get(), &status) != 0) return {};
  return Fact::appending_to(status.st_size);
}

Result<void> Operations::sync(NodeId id, bool data_only) {
  if (never_syncs())
    return fail_errno(ENOSYS);  // the kernel tells programs that it is done, and asks no more
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  if (node->is_directory()) {
    auto directory = directories_.open(id);
    // Not made yet, or removed while it is open: nothing of it is on the disk.
    if (!directory && directory.error().errno_value == ENOENT) return {};
    if (!directory) return fail(directory.error());
    if (::fsync((*directory)->file.get()) != 0) return fail_errno(errno);
    return {};
  }
  if (id == kMetadataNode) return {};
  auto file = Result<std::shared_ptr<FileDescriptor>>(backings_.attribute_file(id));
  if (!*file) file = data_file(*node, Access::kRead);
  if (!file) return fail(file.error());
  const auto sync = data_only ? ::fdatasync : ::fsync;
  if (with_faults("backing.sync", [&] { return sync((*file)->get()); }) == 0) return {};
  const int error = errno;
  state_.note_sync_error(id, error);
  return fail_errno(error);
}

Result<void> Operations::sync_file(const Request& request, NodeId id, FileId file, bool data_only) {
  auto synced = sync(id, data_only);
  if (const int error = state_.take_sync_error(file, request.unique)) return fail_errno(error);
  return synced;
}

Result<void> Operations::allocate(const Request& request, NodeId id, int mode, off_t offset, off_t length) {
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  auto file = data_file(*node, Access::kWrite);
  if (!file) return fail(file.error());
  if (with_faults("backing.allocate", [&] { return ::fallocate((*file)->get(), mode, offset, length); }) != 0)
    return fail_errno(errno);
  auto cleared = apply(request, *node, (*file)->get(), {});
  attributes_changed(id);
  return cleared;
}

Result<std::optional<off_t>> Operations::seek(NodeId id, off_t offset, int whence) {
  if (id == kMetadataNode) {
    MutexLock lock(metadata_mutex_);
    return seek_in_one_piece(static_cast<off_t>(metadata_->size()), offset, whence);
  }
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  // Its own descriptor: others share the held one, and its position with it.
  auto file = open_backing(*node, O_RDONLY);
  if (!file) return fail(file.error());
  const off_t found = ::lseek(file->get(), offset, whence);
  const int error = errno;
  const bool is_after_hole = whence == SEEK_DATA ? found != offset : found >= 0;
  if (is_after_hole && may_hide_stores(id)) return std::nullopt;
  if (found < 0) return fail_errno(error);
  return found;
}

Result<off_t> Operations::seek_after_stores(NodeId id, off_t offset, int whence) {
  const bool are_written = fetch_stores(id);
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  auto file = open_backing(*node, O_RDONLY);
  if (!file) return fail(file.error());
  struct stat status {};
  if (!are_written && ::fstat(file->get(), &status) == 0)
    return seek_in_one_piece(status.st_size, offset, whence);
  const off_t found = ::lseek(file->get(), offset, whence);
  if (found < 0) return fail_errno(errno);
  return found;
}

bool Operations::kernel_copies_as_well() const {
  const auto workdir = workspace_.volume(kWorkdirVolume);
  return state_.passthrough() && !workspace_.volume(kWorkspaceVolume)->copies_cleverly() &&
         !(workdir && workdir->copies_cleverly());
}

bool Operations::never_syncs() const {
  return workspace_.volume(kWorkspaceVolume)->is_in_memory() && !workspace_.has_workdir() &&
         !config_.expects_workdir;
}

Result<std::size_t> Operations::copy_range(const Request& request, NodeId from, off_t from_offset, NodeId to,
                                           off_t to_offset, std::size_t length) {
  if (from == kMetadataNode) return fail_errno(EXDEV);  // then the kernel reads and writes
  auto source = nodes_.find(from);
  auto target = nodes_.find(to);
  if (!source) return fail(source.error());
  if (!target) return fail(target.error());
  auto input = data_file(*source, Access::kRead);
  auto output = data_file(*target, Access::kWrite);
  if (!input) return fail(input.error());
  if (!output) return fail(output.error());
  constexpr std::size_t kMostCopied = 64 << 20;  // who asks can be killed only in between
  loff_t in = from_offset;
  loff_t out = to_offset;
  const ssize_t copied =
      ::copy_file_range((*input)->get(), &in, (*output)->get(), &out, std::min(length, kMostCopied), 0);
  if (copied < 0) return fail_errno(errno);
  if (auto cleared = apply(request, *target, (*output)->get(), {}); !cleared) return fail(cleared.error());
  return static_cast<std::size_t>(copied);
}

Result<FileDescriptor> Operations::open_for_reading(NodeId id) {
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  if (node->is_directory()) return fail_errno(EISDIR);
  if (id != kMetadataNode) return open_backing(*node, O_RDONLY);
  std::shared_ptr<const std::string> text;
  {
    MutexLock lock(metadata_mutex_);
    text = metadata_;
  }
  FileDescriptor copy(::memfd_create("okcvm-metadata", MFD_CLOEXEC));
  if (!copy || ::pwrite(copy.get(), text->data(), text->size(), 0) != static_cast<ssize_t>(text->size()))
    return fail_errno(errno);
  return copy;
}

}  // namespace okcvm::fusefs
