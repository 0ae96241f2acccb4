#include "fusefs/dispatch.h"

#include <sys/xattr.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "fusefs/answer.h"
#include "fusefs/channel.h"
#include "fusefs/io_buffer.h"
#include "fusefs/replies.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

// -- Names

void on_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const auto handout = hand_out(request);
  const Zone zone = node(parent) == kRootNode ? zone_named(name) : zone_of(request);
  answer(request,
         gated_in(zone, request,
                  [=](Operations& fs) {
                    fs.is_looked_up(node(parent), name);
                    return fs.look_up(node(parent), name);
                  }),
         reply_entry(request));
}

void on_forget(fuse_req_t request, fuse_ino_t id, std::uint64_t count) {
  const auto waiting = Channel::Waiting::perhaps(channel_if_may_wait(request));
  do_unheard([=] { dispatcher_of(request).operations.forget(node(id), count); });
  fuse_reply_none(request);
}

void on_forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  const auto waiting = Channel::Waiting::perhaps(&dispatcher_of(request).channel);
  for (std::size_t i = 0; i < count; ++i)
    do_unheard([=] { dispatcher_of(request).operations.forget(node(forgets[i].ino), forgets[i].nlookup); });
  fuse_reply_none(request);
}

/// What a link may say depends on how deep it is for the kernel. The kernel's look-ups need a thread
/// meanwhile.
void let_be_found(fuse_req_t request, NodeId id) {
  auto& dispatcher = dispatcher_of(request);
  if (!dispatcher.operations.is_misplaced(id)) return;
  const Channel::Waiting waiting(dispatcher.channel);
  dispatcher.operations.let_be_found(id);
}

/// For what the kernel is told first: after a kill of the daemon that can be much.
constexpr int kMostWaitsForMoves = 20;  // of DeeperMoves::let_end()

// Not gated: the kernel holds a page lock meanwhile, which an invalidation would wait for.
void on_readlink(fuse_req_t request, fuse_ino_t id) {
  const auto read = [=] {
    let_be_found(request, node(id));
    auto& dispatcher = dispatcher_of(request);
    auto text = dispatcher.operations.read_link_of_kernel(node(id), 0);
    if (text || text.error().errno_value != ESTALE) return text;
    // The kernel looks again once only.
    const Channel::Waiting waiting(dispatcher.channel);
    return dispatcher.operations.read_link_of_kernel(node(id), kMostWaitsForMoves);
  };
  answer(request, read, [=](const std::string& text) { fuse_reply_readlink(request, text.c_str()); });
}

void on_mknod(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  const auto handout = hand_out(request);
  const auto who = asker(request, handout.change());
  answer(request,
         gated(request, [=](Operations& fs) { return fs.make_node(who, node(parent), name, mode, device); }),
         reply_entry(request));
}

void on_mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  const auto handout = hand_out(request);
  const auto who = asker(request, handout.change());
  answer(request,
         gated(request, [=](Operations& fs) { return fs.make_directory(who, node(parent), name, mode); }),
         reply_entry(request));
}

void on_symlink(fuse_req_t request, const char* text, fuse_ino_t parent, const char* name) {
  const auto handout = hand_out(request);
  const auto who = asker(request, handout.change());
  const auto make = [=] {
    let_be_found(request, node(parent));
    return gated(request, [=](Operations& fs) { return fs.make_symlink(who, node(parent), name, text); })();
  };
  answer(request, make, reply_entry(request));
}

void on_link(fuse_req_t request, fuse_ino_t id, fuse_ino_t parent, const char* name) {
  const auto handout = hand_out(request);
  const auto who = asker(request, handout.change());
  answer(request,
         gated(request, [=](Operations& fs) { return fs.make_link(who, node(id), node(parent), name); }),
         reply_entry(request));
}

void on_unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const auto change = begin_change(request);
  const auto who = asker(request, change);
  answer(request, gated(request, [=](Operations& fs) { return fs.unlink(who, node(parent), name); }),
         reply_removed(request));
}

void on_rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const auto change = begin_change(request);
  const auto who = asker(request, change);
  answer_done(request,
              gated(request, [=](Operations& fs) { return fs.remove_directory(who, node(parent), name); }));
}

void on_rename(fuse_req_t request, fuse_ino_t parent, const char* name, fuse_ino_t new_parent,
               const char* new_name, unsigned flags) {
  std::optional<SessionState::Change> change;
  const auto rename = gated(request, [&](Operations& fs) {
    const auto source = fs.status_at(node(parent), name);
    const auto fact = flags & RENAME_EXCHANGE ? Fact::exchange : Fact::inode;
    change.emplace(begin_change(request, source ? fact(source->st_ino) : Fact()));
    return fs.rename(asker(request), node(parent), name, source, node(new_parent), new_name, flags);
  });
  // The kernel moves what it knows of the names when it has the answer: no text of a link may be left by
  // then.
  const auto rename_and_tell = [&]() -> Result<Operations::Renamed> {
    auto renamed = rename();
    fault_point("rename.done");
    if (!renamed || renamed->links.empty()) return renamed;
    const Channel::Waiting waiting(dispatcher_of(request).channel);
    if (dispatcher_of(request).operations.drop_texts(renamed->links)) return renamed;
    change->leave();
    return fail_errno(kLeftToNextDaemon);
  };
  answer(request, rename_and_tell,
         [=](const Operations::Renamed& renamed) { reply_removed(request)(renamed.replaced); });
}

// -- Attributes

void on_getattr(fuse_req_t request, fuse_ino_t id, fuse_file_info*) {
  const bool is_statx = Channel::current().opcode == protocol::kStatx;
  std::optional<timespec> born;
  answer(request,
         gated(request,
               [&](Operations& fs) {
                 if (is_statx) born = fs.birth_time(node(id));
                 return fs.attributes(node(id));
               }),
         [&](const Entry& entry) {
           is_statx ? reply_statx(request, entry, born) : reply_attributes(request)(entry);
         });
}

void on_setattr(fuse_req_t request, fuse_ino_t id, struct stat* attributes, int which, fuse_file_info* file) {
  SetAttributes wanted;
  if (which & FUSE_SET_ATTR_MODE) wanted.mode = attributes->st_mode;
  if (which & FUSE_SET_ATTR_UID) wanted.uid = attributes->st_uid;
  if (which & FUSE_SET_ATTR_GID) wanted.gid = attributes->st_gid;
  if (which & FUSE_SET_ATTR_SIZE) wanted.size = attributes->st_size;
  wanted.size_by_path = !file;
  // Nothing at all: chown(2) with two times -1, or a write past us to a file with set-id bits.
  wanted.owner_touched = which == 0;
  const timespec now{0, UTIME_NOW};
  if (which & FUSE_SET_ATTR_ATIME)
    wanted.accessed = (which & FUSE_SET_ATTR_ATIME_NOW) ? now : attributes->st_atim;
  if (which & FUSE_SET_ATTR_MTIME)
    wanted.modified = (which & FUSE_SET_ATTR_MTIME_NOW) ? now : attributes->st_mtim;
  std::optional<SessionState::Change> change;
  answer(request,
         gated_after_leases(request, 0, &change, Fact(),
                            [=](Operations& fs) {
                              Request who = asker(request);
                              who.kill_privileges =
                                  wanted.owner_touched || (Channel::current().body<fuse_setattr_in>().valid &
                                                           protocol::kSetattrKillSuidgid);
                              return fs.set_attributes(who, node(id), wanted);
                            }),
         reply_attributes(request));
}

void on_statfs(fuse_req_t request, fuse_ino_t id) {
  answer(
      request, [=] { return dispatcher_of(request).operations.file_system_status(node(id)); },
      [=](const struct statvfs& status) { fuse_reply_statfs(request, &status); });
}

void on_getxattr(fuse_req_t request, fuse_ino_t id, const char* name, std::size_t room) {
  answer(request, gated(request, [=](Operations& fs) { return fs.extended_attribute(node(id), name); }),
         [=](const std::string& value) { reply_attribute_bytes(request, value, room); });
}

void on_listxattr(fuse_req_t request, fuse_ino_t id, std::size_t room) {
  answer(request, gated(request, [=](Operations& fs) { return fs.extended_attribute_names(node(id)); }),
         [=](const std::string& names) { reply_attribute_bytes(request, names, room); });
}

void on_setxattr(fuse_req_t request, fuse_ino_t id, const char* name, const char* value, std::size_t size,
                 int flags) {
  std::optional<SessionState::Change> change;  // until it is answered
  answer_done(request, gated(request, [&](Operations& fs) {
                const bool must_make = flags & XATTR_CREATE;
                change.emplace(begin_change(
                    request, must_make ? fs.attribute_fact(node(id), name) : Fact::repeatable()));
                return fs.set_extended_attribute(asker(request), node(id), name, {value, size}, flags);
              }));
}

void on_removexattr(fuse_req_t request, fuse_ino_t id, const char* name) {
  std::optional<SessionState::Change> change;  // until it is answered
  answer_done(request, gated(request, [&](Operations& fs) {
                change.emplace(begin_change(request, fs.attribute_fact(node(id), name)));
                return fs.remove_extended_attribute(asker(request), node(id), name);
              }));
}

// -- Listings

// The kernel then never opens or closes a directory through us again (FUSE_NO_OPENDIR_SUPPORT), and keeps
// listings.
void on_opendir(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
  fuse_reply_err(request, ENOSYS);
}

Result<ListingReply> finished(ListingReply reply, const Result<void>& listed) {
  fault_point("listing.read");
  if (!listed && reply.is_empty()) return fail(listed.error());
  return reply;  // what was read before an error is told first
}

void on_readdir(fuse_req_t request, fuse_ino_t id, std::size_t room, off_t offset, fuse_file_info*) {
  answer(request,
         gated(request,
               [=](Operations& fs) {
                 ListingReply reply(request, room);
                 if (offset == 0) fs.kernel_lists(node(id));
                 const auto listed = fs.list(
                     node(id), offset, [&](const ListedName& row) { return reply.add(row); },
                     [&] { return reply.names_wanted(1); });
                 return finished(std::move(reply), listed);
               }),
         [](const ListingReply& reply) { reply.send(); });
}

/// Its file system may hang: who lists the root need not wait for it.
bool is_workdir(NodeId directory, std::string_view name) {
  return directory == kRootNode && zone_named(name) == Zone::kWorkdir;
}

void on_readdirplus(fuse_req_t request, fuse_ino_t id, std::size_t room, off_t offset, fuse_file_info*) {
  const auto handout = hand_out(request);
  answer(request,
         gated(request,
               [=](Operations& fs) {
                 ListingReply reply(request, room);
                 if (offset == 0) fs.kernel_lists(node(id));
                 auto directory = fs.directories().open(node(id));
                 std::uint32_t names = 0;
                 const auto visit = [&](const ListedName& row) {
                   // Without a name in it, the kernel would take it for the end of the directory.
                   if (!reply.fits_with_inode(row) || (names > 0 && Handout::is_full())) return false;
                   const std::string_view name(row.name);
                   const bool needless = name == "." || name == ".." || is_workdir(node(id), name) ||
                                         (directory && fs.may_leave_out(**directory, row));
                   auto entry = needless    ? Result<Entry>()
                                : directory ? fs.look_up_in(**directory, row.name)
                                            : fs.look_up(node(id), row.name);
                   reply.add_with_inode(row, entry.value_or(Entry{}));
                   ++names;
                   return true;
                 };
                 // A name takes about a fifth as much room without its inode.
                 const auto listed = fs.list(node(id), offset, visit, [&] { return reply.names_wanted(5); });
                 fs.listed(node(id), offset == 0, names);
                 return finished(std::move(reply), listed);
               }),
         [](const ListingReply& reply) { reply.send(); });
}

void on_fsyncdir(fuse_req_t request, fuse_ino_t id, int data_only, fuse_file_info*) {
  answer_done(request, [=] { return dispatcher_of(request).operations.sync(node(id), data_only != 0); });
}

// -- Files

/// Before a file is emptied as it is opened, for which the kernel does not wait for what was stored through
/// mappings and is on its way: it would come afterwards, and stay.
void let_stores_arrive(fuse_req_t request, NodeId id) {
  auto& dispatcher = dispatcher_of(request);
  if (!dispatcher.operations.may_hide_stores(id)) return;
  const Channel::Waiting waiting(dispatcher.channel);
  dispatcher.operations.fetch_stores(id);
}

void on_open(fuse_req_t request, fuse_ino_t id, fuse_file_info* wanted) {
  const bool empties = wanted->flags & O_TRUNC;
  const bool changes = (wanted->flags & O_ACCMODE) != O_RDONLY || empties;
  std::optional<SessionState::Change> change;
  const auto open = gated_after_leases(
      request, wanted->flags, changes ? &change : nullptr, empties ? Fact::repeatable() : Fact(),
      [=](Operations& fs) {
        Request who = asker(request);
        who.may_have_run = Channel::current().resent();
        who.kill_privileges = Channel::current().body<fuse_open_in>().open_flags & protocol::kOpenKillSuidgid;
        return fs.open(who, node(id), wanted->flags);
      });
  answer(
      request,
      [&] {
        if (empties) let_stores_arrive(request, node(id));
        return open();
      },
      [request, &fs = dispatcher_of(request).operations](const Opened& opened) {
        const auto info = file_info_of(opened);
        Channel::current().backing_id = opened.backing_id;
        if (fuse_reply_open(request, &info) == kNobodyListens) fs.release(opened.file);
      });
}

void on_create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* wanted) {
  const auto handout = hand_out(request);
  answer(request,
         gated(request,
               [&](Operations& fs) {
                 Request who = asker(request, handout.change());
                 who.kill_privileges =
                     Channel::current().body<fuse_create_in>().open_flags & protocol::kOpenKillSuidgid;
                 return Channel::current().opcode == protocol::kTmpfile
                            ? fs.create_nameless(who, node(parent), mode, wanted->flags)
                            : fs.create(who, node(parent), name, mode, wanted->flags);
               }),
         [request, &fs = dispatcher_of(request).operations](const std::pair<Entry, Opened>& made) {
           const auto& [entry, opened] = made;
           const auto out = parameters_of(entry);
           const auto info = file_info_of(opened);
           Channel::current().backing_id = opened.backing_id;
           if (fuse_reply_create(request, &out, &info) != kNobodyListens) return;
           fs.release(opened.file);
           fs.forget(entry.id, 1);
         });
}

void on_release(fuse_req_t request, fuse_ino_t, fuse_file_info* info) {
  do_unheard([=] { dispatcher_of(request).operations.release(FileId{info->fh}); });
  fuse_reply_err(request, 0);
}

// Nothing is kept back here that a close would have to wait for; the kernel does not ask again.
void on_flush(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
  fuse_reply_err(request, ENOSYS);
}

void on_read(fuse_req_t request, fuse_ino_t id, std::size_t size, off_t offset, fuse_file_info*) {
  IoBuffer buffer;
  const auto bytes = buffer.bytes();
  answer(
      request,
      [&] {
        return dispatcher_of(request).operations.read(asker(request), node(id),
                                                      bytes.first(std::min(size, bytes.size())), offset);
      },
      [&](std::size_t got) { fuse_reply_buf(request, reinterpret_cast<const char*>(bytes.data()), got); });
}

void on_write(fuse_req_t request, fuse_ino_t id, const char* data, std::size_t size, off_t offset,
              fuse_file_info* file) {
  std::optional<SessionState::Change> change;  // until it is answered
  answer(
      request,
      [&] {
        auto& fs = dispatcher_of(request).operations;
        if (const auto fact = fs.append_fact(node(id), file->flags))
          change.emplace(begin_change(request, fact));
        Request who = asker(request);
        who.kill_privileges =
            Channel::current().body<fuse_write_in>().write_flags & protocol::kWriteKillSuidgid;
        return fs.write(who, node(id), {reinterpret_cast<const std::byte*>(data), size}, offset, file->flags);
      },
      [=](std::size_t written) { fuse_reply_write(request, written); });
}

void on_fsync(fuse_req_t request, fuse_ino_t id, int data_only, fuse_file_info* info) {
  const Request who = asker(request);
  answer_done(request, [=] {
    return dispatcher_of(request).operations.sync_file(who, node(id), FileId{info->fh}, data_only != 0);
  });
}

// Not gated, as writes are not: it may take long.
void on_fallocate(fuse_req_t request, fuse_ino_t id, int mode, off_t offset, off_t length, fuse_file_info*) {
  std::optional<SessionState::Change> change;  // until it is answered
  answer_done(request, [&] {
    change.emplace(begin_change(request, Fact::repeatable()));
    return dispatcher_of(request).operations.allocate(writer(request), node(id), mode, offset, length);
  });
}

void on_lseek(fuse_req_t request, fuse_ino_t id, off_t offset, int whence, fuse_file_info*) {
  const auto seek = [=]() -> Result<off_t> {
    auto& dispatcher = dispatcher_of(request);
    const auto found = dispatcher.operations.seek(node(id), offset, whence);
    if (!found) return fail(found.error());
    if (*found) return **found;
    const Channel::Waiting waiting(dispatcher.channel);
    return dispatcher.operations.seek_after_stores(node(id), offset, whence);
  };
  answer(request, seek, [=](off_t found) { fuse_reply_lseek(request, found); });
}

void on_copy_file_range(fuse_req_t request, fuse_ino_t from, off_t from_offset, fuse_file_info*,
                        fuse_ino_t to, off_t to_offset, fuse_file_info*, std::size_t length, int) {
  if (dispatcher_of(request).operations.kernel_copies_as_well())
    return void(fuse_reply_err(request, ENOSYS));  // the kernel does not ask again

  std::optional<SessionState::Change> change;  // until it is answered
  const auto copy = [&] {
    change.emplace(begin_change(request, Fact::repeatable()));
    return dispatcher_of(request).operations.copy_range(writer(request), node(from), from_offset, node(to),
                                                        to_offset, length);
  };
  answer(request, copy, [=](std::size_t copied) { fuse_reply_write(request, copied); });
}

}  // namespace

const fuse_lowlevel_ops& fuse_callbacks() {
  static const fuse_lowlevel_ops callbacks = [] {
    fuse_lowlevel_ops table{};
    table.lookup = on_lookup;
    table.forget = on_forget;
    table.forget_multi = on_forget_multi;
    table.getattr = on_getattr;
    table.setattr = on_setattr;
    table.readlink = on_readlink;
    table.mknod = on_mknod;
    table.mkdir = on_mkdir;
    table.unlink = on_unlink;
    table.rmdir = on_rmdir;
    table.symlink = on_symlink;
    table.rename = on_rename;
    table.link = on_link;
    table.open = on_open;
    table.read = on_read;
    table.write = on_write;
    table.flush = on_flush;
    table.release = on_release;
    table.fsync = on_fsync;
    table.opendir = on_opendir;
    table.readdir = on_readdir;
    table.readdirplus = on_readdirplus;
    table.fsyncdir = on_fsyncdir;
    table.statfs = on_statfs;
    table.setxattr = on_setxattr;
    table.getxattr = on_getxattr;
    table.listxattr = on_listxattr;
    table.removexattr = on_removexattr;
    table.create = on_create;
    table.fallocate = on_fallocate;
    table.lseek = on_lseek;
    table.copy_file_range = on_copy_file_range;
    return table;
  }();
  return callbacks;
}

}  // namespace okcvm::fusefs
