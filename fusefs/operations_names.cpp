// Looking: names and listings.

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "fusefs/operations.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

// The driver is the only writer of the managed zones and invalidates what it changes itself, so the kernel
// may believe what it was told. Where the host can change files too, it asks again after kSharedSeconds.
constexpr double kManagedSeconds = 24 * 3600;
constexpr double kSharedSeconds = 0.4;
constexpr blkcnt_t kBlocksOfPage = 4096 / 512;

// Inode numbers of directories that have no backing file, or not always the same one.
constexpr std::uint64_t kVirtualInode = std::uint64_t{1} << 49;
constexpr int kNanosecondsPerMillisecond = 1'000'000;

/// A skill is shown as the session's own, or its owner would be told EACCES where the rule says EROFS. He may
/// read of it what the host lets him read.
void give_to(uid_t uid, gid_t gid, struct stat& status) {
  const auto may_read = [mode = status.st_mode](int shift) { return mode >> shift & 05; };  // and search, run
  const mode_t groups = may_read(status.st_gid == gid ? 3 : 0);
  const mode_t owners = status.st_uid == uid ? may_read(6) : groups;
  status.st_mode = (status.st_mode & ~mode_t{0550}) | owners << 6 | groups << 3;
  status.st_uid = uid;
  status.st_gid = gid;
}

struct KernelDirent {  // linux_dirent64, getdents(2)
  ino64_t inode;
  off64_t next;
  unsigned short size;
  unsigned char type;
  char name[];
};

}  // namespace

// -- What the kernel is told

AttributesTold Operations::tell(NodeId id, bool has_one_name) {
  auto told = nodes_.told(id, has_one_name);
  for (const NodeId directory : told.to_list_again) kernel_.inode(directory);
  return told;
}

Entry Operations::entry_of(const Node& node, struct stat status) {
  const ZoneRule& rule = rule_of(node.zone);
  status.st_ino = is_zone_directory(node.id) ? kVirtualInode + node.id.value
                                             : shown_inode(node.key.volume, status.st_ino);
  if (node.zone == Zone::kSkills) give_to(config_.owner_uid, config_.owner_gid, status);
  const double seconds = rule.changes_underneath ? kSharedSeconds : kManagedSeconds;
  if (node.dead && S_ISREG(node.type)) status.st_nlink = 0;  // but for a hidden name (orphans.h)
  Entry entry{node.id, status, seconds, seconds};
  // What is done to a file under one name changes its attributes under the others.
  const bool has_one_name = status.st_nlink == 1 || S_ISDIR(status.st_mode);
  const auto told = tell(node.id, has_one_name);
  const OpenState& open = told.open;
  // Stores through a shared mapping of what is passed through change the times of a file without a word to
  // us or to the kernel's own idea of it; other writes do not.
  const bool changes_unseen = (open.mappers && open.backing_id) || open.may_be_mapped;
  // What has no block at all is one hole to tar and others, without a look.
  const bool has_to_show_block = open.may_hide_stores() && status.st_blocks == 0 && status.st_size > 0;
  if (has_to_show_block) entry.attributes.st_blocks = kBlocksOfPage;
  if (!told.may_be_kept || has_to_show_block)
    entry.attributes_seconds = 0;
  else if (changes_unseen)
    entry.attributes_seconds = steady_attributes_.are_steady(node.id, status) ? kMomentSeconds : 0;
  if (!open.mappers && open.may_be_mapped)
    if (const auto settled = settled_status(node)) return entry_of(node, *settled);
  return entry;
}

std::optional<struct stat> Operations::settled_status(const Node& node) {
  const auto whole = nodes_.find(node.id);  // a listing knows little of it
  if (!whole) return std::nullopt;
  const auto file = open_inode(*whole, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  struct stat status {};
  if (!file || backings_.is_mapped(node.id, file->get()) || ::fstat(file->get(), &status) != 0)
    return std::nullopt;
  return status;
}

nlink_t Operations::shown_zones() const {
  return kZoneRules.size() - (workspace_.has_workdir() ? 1 : 2);  // the root is one of them
}

Entry Operations::virtual_directory(Zone zone) {
  struct stat status {};
  status.st_ino = kVirtualInode + node_of(zone).value;
  status.st_mode = S_IFDIR | (zone == Zone::kRoot ? config_.root_mode : kZoneMode);
  status.st_nlink = 2 + (zone == Zone::kRoot ? shown_zones() : 0);
  status.st_uid = config_.owner_uid;
  status.st_gid = config_.owner_gid;
  status.st_blksize = 4096;
  status.st_atim = status.st_mtim = status.st_ctim = config_.created_at;
  const double seconds = zone == Zone::kSkills ? kSharedSeconds : kManagedSeconds;
  const bool may_be_kept = tell(node_of(zone), true).may_be_kept;  // the first write may come between
  return Entry{node_of(zone), status, kManagedSeconds, may_be_kept ? seconds : 0};
}

Entry Operations::metadata_entry() {
  Entry entry = virtual_directory(Zone::kRoot);
  entry.id = kMetadataNode;
  entry.attributes.st_ino = kVirtualInode + kMetadataNode.value;
  entry.attributes.st_mode = S_IFREG | 0644;  // who may write by that is told EROFS, as on a read-only mount
  entry.attributes.st_nlink = 1;
  MutexLock lock(metadata_mutex_);
  entry.attributes.st_size = static_cast<off_t>(metadata_->size());
  entry.attributes.st_blocks = (entry.attributes.st_size + 511) / 512;
  // Another text looks changed, whichever daemon shows it. The time of creation is known to the millisecond.
  const auto text_hash = std::hash<std::string>()(*metadata_);
  long& nanoseconds = entry.attributes.st_mtim.tv_nsec;
  nanoseconds +=
      static_cast<long>(text_hash % kNanosecondsPerMillisecond) - nanoseconds % kNanosecondsPerMillisecond;
  entry.attributes.st_ctim = entry.attributes.st_mtim;
  return entry;
}

Result<Entry> Operations::zone_entry(Zone zone) {
  if (zone == Zone::kSkills || zone == Zone::kRoot) return virtual_directory(zone);
  if (zone == Zone::kWorkdir && !workspace_.has_workdir()) return fail_errno(ENOENT);
  auto directory = directories_.open(node_of(zone));
  if (!directory && directory.error().errno_value == ENOENT) return virtual_directory(zone);
  if (!directory) return fail(directory.error());
  struct stat status {};
  if (::fstat((*directory)->file.get(), &status) != 0) return fail_errno(errno);
  auto node = nodes_.find(node_of(zone));
  if (!node) return fail(node.error());
  return entry_of(*node, status);
}

Result<Entry> Operations::skill_entry(const char* name) {
  const auto id = workspace_.skill(name);
  const auto volume = id ? workspace_.volume(*id) : nullptr;
  if (!volume) return Entry{};
  struct stat status {};
  if (::fstat(volume->root(), &status) != 0) return fail_errno(errno);
  Node node;
  node.parent = node_of(Zone::kSkills);
  node.key = {*id, status.st_ino};
  node.zone = Zone::kSkills;
  node.type = S_IFDIR;
  node.name = name;
  if (auto made = make_known(node, *volume, volume->root(), ""); !made) return fail(made.error());
  return entry_of(node, status);
}

// -- Lookup

Result<Entry> Operations::look_up(NodeId parent, const char* name) {
  if (std::strlen(name) > NAME_MAX) return fail_errno(ENAMETOOLONG);
  if (parent == kRootNode) {
    if (name == kMetadataFile) return metadata_entry();
    const Zone zone = zone_named(name);
    auto entry = zone == Zone::kRoot ? Result<Entry>(fail_errno(ENOENT)) : zone_entry(zone);
    if (!entry && entry.error().errno_value == ENOENT) return Entry{{}, {}, kManagedSeconds, 0};
    return entry;
  }
  if (parent == node_of(Zone::kSkills)) return skill_entry(name);
  auto directory = directories_.open(parent);
  if (!directory && directory.error().errno_value == ENOENT) return Entry{{}, {}, kManagedSeconds, 0};
  if (!directory) return fail(directory.error());
  // The kernel holds no lock when it only asks again for what it knows.
  auto entry = look_up_in(**directory, name, -1, Lock::kNotHeld);
  if (!entry && entry.error().errno_value == ENOENT)
    return Entry{{}, {}, rule_of((*directory)->zone).changes_underneath ? 0 : kManagedSeconds, 0};
  return entry;
}

Result<Entry> Operations::look_up_in(const Directory& directory, const char* name, int opened, Lock lock) {
  const Gate::Pass pass(recorder_.moves(directory.zone));  // what is found stands there until that is noted
  const bool shared = rule_of(directory.zone).changes_underneath;
  struct stat status {};
  Node node;
  node.zone = directory.zone;
  const auto look = [&] {
    const int looked = opened >= 0 ? ::fstat(opened, &status)
                                   : ::fstatat(directory.file.get(), name, &status, AT_SYMLINK_NOFOLLOW);
    node.key = {directory.volume, status.st_ino};
    node.type = status.st_mode & S_IFMT;
    return looked == 0;
  };
  if (!shared) {
    if (!look()) return fail_errno(errno);
    if (const auto known = nodes_.reference_known(node.key, directory.id, name)) {
      node.id = *known;
      return entry_of(node, status);
    }
  }
  FileDescriptor held;
  if ((shared || lock == Lock::kNotHeld) && opened < 0) {
    // The name may be another file's from one call to the next: hold on to the file, then look at it.
    held = directory.hold(name);
    if (!held) return fail_errno(errno);  // EXDEV: a mount inside the workdir is not entered
    opened = held.get();
  }
  if ((shared || held) && !look()) return fail_errno(errno);
  const auto volume = workspace_.volume(directory.volume);
  if (!volume) return fail_errno(ESTALE);
  if (status.st_dev != volume->device())
    return fail_errno(EXDEV);  // nor a file system within the file system
  node.parent = directory.id;
  node.name = name;
  if (shared) node.stays_in_anywhere = stays_in_anywhere(opened, "", status);
  auto made = opened >= 0 ? make_known(node, *volume, opened, "")
                          : make_known(node, *volume, directory.file.get(), name);
  if (!made) return fail(made.error());
  if (shared) drop_outdated_listing(node, status);
  return entry_of(node, status);
}

/// Takes a reference on what stands at `name` of the directory `at` (at it itself for ""), and fills in its
/// handle and id.
Result<void> Operations::make_known(Node& node, Volume& volume, int at, const char* name) {
  auto handle = volume.pin(at, name, node.key.inode);
  if (!handle) return fail(handle.error());
  node.handle = *handle;
  auto reference = nodes_.reference(node);
  if (!reference || !reference->made) volume.unpin(node.key.inode);
  if (!reference) return fail(reference.error());
  node.id = reference->id;
  return {};
}

bool Operations::may_leave_out(const Directory& directory, const ListedName& row) {
  const InodeKey key{directory.volume, shown_inode(directory.volume, row.inode)};  // as it was before
  return !rule_of(directory.zone).changes_underneath && nodes_.may_leave_out(key, directory.id, row.name);
}

void Operations::forget(NodeId id, std::uint64_t count) {
  fault_point("forget");
  const Forgotten forgotten = backings_.forget(id, count);
  if (!forgotten.gone) return;
  not_held(id);
  directories_.drop(id);
  listings_.drop(id);
  if (const auto volume = workspace_.volume(forgotten.key.volume)) volume->unpin(forgotten.key.inode);
  if (!nodes_.knows_any_in(forgotten.key.volume)) workspace_.release(forgotten.key.volume);
}

std::optional<Node> Operations::known_in(NodeId parent, const char* name) {
  struct stat status {};
  auto directory = directories_.open(parent);
  if (!directory || (*directory)->look_at(name, status) != 0) return std::nullopt;
  const auto id = nodes_.id_of({(*directory)->volume, status.st_ino});
  if (!id) return std::nullopt;
  auto node = nodes_.find(*id);
  if (!node || node->parent != parent) return std::nullopt;
  return std::move(*node);
}

// -- Listings

void Operations::kernel_lists(NodeId id) {
  const auto node = nodes_.find(id);
  if (!node || !rule_of(node->zone).changes_underneath) return;
  const auto directory = directories_.open(id);
  struct stat status {};
  if (!directory || ::fstat((*directory)->file.get(), &status) != 0) return;
  if (const auto forgotten = listings_.listed_at(id, status.st_ctim)) kernel_.inode(*forgotten);
}

/// Opens it if it is not, and has it go on at this offset.
Result<void> Operations::go_to(Listings::Listing& listing, int directory, off_t offset) {
  if (!listing.file)
    listing.file = FileDescriptor(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!listing.file) return fail_errno(errno);
  if (listing.at == offset) return {};
  listing.unread.clear();
  if (::lseek(listing.file.get(), offset, SEEK_SET) < 0) {
    const int error = errno;
    struct stat status {};
    // The host removed it meanwhile: some file systems then refuse the offset before the listing.
    const bool is_removed = ::fstat(listing.file.get(), &status) == 0 && status.st_nlink == 0;
    return fail_errno(is_removed ? ENOENT : error);
  }
  listing.at = offset;
  return {};
}

Result<void> Operations::list(NodeId id, off_t offset, const ListVisitor& visit,
                              const ListingAppetite& wanted) {
  if (id == kRootNode || id == node_of(Zone::kSkills)) return list_virtual(id, offset, visit);
  auto directory = directories_.open(id);
  if (!directory && directory.error().errno_value == ENOENT)
    return is_zone_directory(id) ? list_virtual(id, offset, visit) : Result<void>();  // removed: empty
  if (!directory) return fail(directory.error());
  auto listing = offset ? listings_.take(id) : listings_.begin(id);
  if (auto ready = go_to(listing, (*directory)->file.get(), offset); !ready) return ready;
  const VolumeId volume = (*directory)->volume;
  const auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  const auto inode_of = [&](const KernelDirent& row) {
    const std::string_view name(row.name);
    if (name == "." && is_zone_directory(id)) return kVirtualInode + id.value;
    if (name == ".." && is_fixed(node->parent)) return kVirtualInode + node->parent.value;
    return shown_inode(volume, row.inode);
  };
  alignas(KernelDirent) std::array<char, kListingPiece> buffer;
  while (const std::size_t piece = std::min(wanted(), buffer.size())) {
    auto size = static_cast<long>(listing.unread.copy(buffer.data(), buffer.size()));
    if (size == 0) size = ::syscall(SYS_getdents64, listing.file.get(), buffer.data(), piece);
    if (size < 0) return fail_errno(errno);
    if (size == 0) return {};
    listing.unread.clear();
    for (long at = 0; at < size;) {
      const auto* row = reinterpret_cast<const KernelDirent*>(buffer.data() + at);
      if (!visit({row->name, inode_of(*row), static_cast<mode_t>(DTTOIF(row->type)), row->next})) {
        listing.unread.assign(buffer.data() + at, static_cast<std::size_t>(size - at));
        break;
      }
      at += row->size;
      listing.at = row->next;
    }
    if (!listing.unread.empty()) break;
  }
  listings_.keep(id, std::move(listing));
  return {};
}

/// Each row has a place of its own, so that a listing goes on where it was whatever came or went meanwhile.
Result<void> Operations::list_virtual(NodeId id, off_t offset, const ListVisitor& visit) {
  struct Row {
    std::string name;
    std::uint64_t inode;
    mode_t type;
  };
  std::map<off_t, Row> rows{{1, {".", kVirtualInode + id.value, S_IFDIR}},
                            {2, {"..", kVirtualInode + kRootNode.value, S_IFDIR}}};
  constexpr off_t kFirst = 3;
  if (id == kRootNode) {
    rows[kFirst] = {std::string(kMetadataFile), kVirtualInode + kMetadataNode.value, S_IFREG};
    for (const auto& rule : kZoneRules)
      if (rule.zone != Zone::kRoot && (rule.zone != Zone::kWorkdir || workspace_.has_workdir()))
        rows[kFirst + 1 + static_cast<off_t>(rule.zone)] = {
            std::string(rule.name), kVirtualInode + node_of(rule.zone).value, S_IFDIR};
  } else if (id == node_of(Zone::kSkills)) {
    for (const auto& skill : workspace_.skills()) {
      struct stat status {};
      const auto volume = workspace_.volume(skill.volume);
      if (volume && ::fstat(volume->root(), &status) == 0)
        rows[kFirst + skill.volume] = {skill.name.text(), shown_inode(skill.volume, status.st_ino), S_IFDIR};
    }
  }
  for (auto row = rows.upper_bound(offset); row != rows.end(); ++row)
    if (!visit({row->second.name.c_str(), row->second.inode, row->second.type, row->first})) break;
  return {};
}

}  // namespace okcvm::fusefs
