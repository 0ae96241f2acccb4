#include "snapshots/capture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "policy/fault.h"
#include "policy/zones.h"
#include "snapshots/io.h"
#include "snapshots/path_text.h"
#include "snapshots/replay.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kLongestPath = PATH_MAX - 1;
constexpr std::string_view kCannotRead = "a file of the session cannot be read, so no snapshot was taken";
constexpr std::string_view kTooDeep =
    "no snapshot was taken: a path is longer than 4095 bytes; move this directory up, or remove it, and try "
    "again";

/// A directory that is marked only for its attributes or for something below it.
bool stands_where_it_stood(const Node& node) {
  return node.is_directory() && !(node.marks & (kMarkEntry | kMarkContent | kMarkWhole)) &&
         node.origin.empty();
}

Unexpected unreadable(const Error& error, const std::string& path) {
  Error named = Error::from_errno(error.errno_value, kCannotRead, path);
  named.code = error.code == Code::kBusy ? Code::kBusy : named.code;
  return fail(std::move(named));
}

void sort_unique(std::vector<RelPath>& paths) {
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
}

}  // namespace

void Captured::add(Captured later) {
  entries += later.entries;
  bytes += later.bytes;
  in_flight.insert(in_flight.end(), later.in_flight.begin(), later.in_flight.end());
  still_mapped.insert(still_mapped.end(), later.still_mapped.begin(), later.still_mapped.end());
  sort_unique(in_flight);
  sort_unique(still_mapped);
}

Result<Captured> Capture::run() {
  if (auto done = zones(); !done) return fail(done.error());
  if (auto joined = join_links(); !joined) return fail(joined.error());
  log_moves();
  sort_unique(found_.in_flight);
  sort_unique(found_.still_mapped);
  return std::move(found_);
}

/// The root is not a directory of the snapshot but the place of the zones: only those are looked at in it.
Result<void> Capture::zones() {
  Node& root = tree_.root();
  if (root.marks == 0) return {};
  if (auto loaded = tree_.load(root); !loaded) return loaded;
  const bool whole = root.marks & kMarkWhole;
  std::vector<Node*> directories;
  for (const auto& rule : kZoneRules) {
    if (!rule.snapshotted) continue;
    Node* zone = root.child(rule.name);
    if (!zone && whole) {
      auto node = std::make_unique<Node>();
      node->name = rule.name;
      zone = &root.add_child(std::move(node));
    }
    if (!zone) continue;
    if (whole) zone->mark(kMarkEntry | kMarkContent | kMarkWhole);
    if (zone->marks == 0) continue;
    if (!disk_) {
      if (auto removed = remove(*zone); !removed) return removed;
      continue;
    }
    if (stands_where_it_stood(*zone)) {
      directories.push_back(zone);
      continue;
    }
    struct stat status {};
    if (::fstatat(disk_->root(), zone->name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISDIR(status.st_mode))
      return fail(Code::kCorrupt,
                  "a zone of the session is no directory any more: put it back where the state directory has "
                  "the session's files, or move away what is there",
                  zone->name);
    if (auto done = entry(*zone, disk_->root(), zone->name, directories); !done) return done;
  }
  for (Node* zone : directories)
    if (auto done = directory(*zone, zone->name); !done) return done;
  root.marks = 0;
  return {};
}

Result<void> Capture::directory(Node& node, const std::string& path) {
  auto fd = disk_->open_directory(path);
  if (!fd && is_gone(fd.error().errno_value)) return remove(node);
  if (!fd) return unreadable(fd.error(), path);
  if (auto loaded = tree_.load(node); !loaded) return loaded;

  const bool whole = node.marks & kMarkWhole;
  if (whole || node.marks & (kMarkAttributes | kMarkEntry)) {
    struct stat status {};
    if (::fstat(fd->get(), &status) != 0) return unreadable(Error::from_errno(errno, ""), path);
    auto attributes = attributes_of(fd->get(), status);
    if (!attributes) return unreadable(attributes.error(), path);
    if (auto set = set_attributes(node, std::move(*attributes)); !set) return set;
  }
  if (whole) {
    auto rows = rows_in(fd->get());
    if (!rows && is_gone(rows.error().errno_value)) return remove(node);  // since it was opened
    if (!rows) return unreadable(rows.error(), path);
    if (auto listed = list_whole(node, fd->get(), std::move(*rows), path); !listed) return listed;
  }
  node.marks = 0;

  std::vector<Node*> marked;
  for (const auto& child : node.children)
    if (child->marks) marked.push_back(child.get());
  std::vector<Node*> directories;
  for (Node* child : marked) {
    if (stands_where_it_stood(*child))
      directories.push_back(child);
    else if (auto done = entry(*child, fd->get(), below(path, child->name), directories); !done)
      return done;
  }
  fd->reset();  // so that a deep tree needs no more than one descriptor
  for (Node* child : directories)
    if (auto done = directory(*child, below(path, child->name)); !done) return done;
  return {};
}

/// Nothing known of the directory counts but what was moved into it: that is recognised one by one.
Result<void> Capture::list_whole(Node& node, int fd, std::vector<DiskRow> rows, const std::string& path) {
  auto identity = identity_of(fd);
  if (!identity) return unreadable(identity.error(), path);
  if (trust_.index) trust_.index->saw_folder(path, *identity);
  std::vector<std::string> names;
  names.reserve(rows.size());
  for (auto& row : rows) names.push_back(std::move(row.name));
  std::sort(names.begin(), names.end());
  std::vector<Node*> gone;
  for (const auto& child : node.children)
    if (!std::binary_search(names.begin(), names.end(), child->name)) gone.push_back(child.get());
  for (Node* child : gone)
    if (auto removed = remove(*child); !removed) return removed;
  if (!tree_.left_out().empty())
    for (const auto& left_out : tree_.left_out().tree(path))
      if (left_out.find('/', path.size() + 1) == left_out.npos) tree_.left_out().remove(left_out);

  for (auto& name : names) {
    Node* child = node.child(name);
    if (child) {
      const bool arrived = trust_.recognizes && !child->origin.empty();
      const std::uint8_t distrust =
          trust_.by_stat ? kMarkEntry | kMarkWhole : kMarkEntry | kMarkContent | kMarkWhole;
      child->marks |= arrived ? static_cast<std::uint8_t>(kMarkEntry) : distrust;  // they are looked at next
      continue;
    }
    auto made = std::make_unique<Node>();
    made->name = std::move(name);
    made->marks = kMarkEntry;
    node.add_child(std::move(made));
  }
  return {};
}

Result<void> Capture::entry(Node& node, int parent, const std::string& path,
                            std::vector<Node*>& directories) {
  if (auto told = tell_progress(); !told) return told;
  ++found_.entries;
  if (path.size() > kLongestPath)
    return fail_errno(ENAMETOOLONG, kTooDeep, node.parent ? node.parent->path() : std::string());
  struct stat status {};
  if (::fstatat(parent, node.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (is_gone(errno)) return remove(node);
    return unreadable(Error::from_errno(errno, ""), path);
  }
  if (!tree_.left_out().empty()) tree_.left_out().remove(path);
  if (is_captured(node, status)) {
    linked_[status.st_ino].paths.push_back(path);
    node.marks = 0;
    return {};
  }
  switch (status.st_mode & S_IFMT) {
    case S_IFREG:
      return regular(node, parent, status, path);
    case S_IFLNK:
      return link(node, parent, status, path);
    case S_IFDIR:
      if (auto done = folder(node, parent, path); !done) return done;
      directories.push_back(&node);
      return {};
    default:
      if (auto removed = remove(node); !removed) return removed;
      tree_.left_out().set(path, status.st_mode & S_IFMT);
      return {};
  }
}

/// A file that changed is marked under all its names: it is read once.
bool Capture::is_captured(const Node& node, const struct stat& status) const {
  return S_ISREG(status.st_mode) && status.st_nlink > 1 && node.type == NodeType::kFile &&
         !(node.marks & kMarkEntry) && linked_.count(status.st_ino);
}

/// Whether no path below a folder that was moved, and is not looked into, can have become too long. What is
/// read whole is told of by its path.
bool Capture::stays_short(const std::string& known, const std::string& path) {
  if (path.size() <= known.size()) return true;
  const auto longest = trust_.index->longest_folder_below(known) + 1 + NAME_MAX;
  return longest + path.size() - known.size() <= kLongestPath;
}

/// Decides how much of a directory must be read.
Result<void> Capture::folder(Node& node, int parent, const std::string& path) {
  if (!node.is_directory()) return tree_.become(node, NodeType::kDirectory);
  if (node.marks & kMarkWhole) return {};
  const std::string known = node.known ? known_path(node) : std::string();
  const bool recognizes = trust_.index && trust_.recognizes && !known.empty();
  const auto expected = recognizes ? trust_.index->folder(known) : std::nullopt;
  const FileDescriptor fd(with_faults("capture.folder", [&] {
    return ::openat(parent, node.name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  }));
  if (!fd && is_gone(errno)) return {};  // directory() finds that out
  if (!fd) return unreadable(Error::from_errno(errno, ""), path);
  auto identity = identity_of(fd.get());
  if (!identity) return unreadable(identity.error(), path);
  const bool is_recognized = expected && *expected == *identity && stays_short(known, path);
  if (!is_recognized) node.marks |= kMarkWhole;
  if (is_recognized && !node.origin.empty())
    moves_.emplace_back(known, path);
  else
    leave_origin(node);
  return {};
}

Result<void> Capture::link(Node& node, int parent, const struct stat& status, const std::string& path) {
  auto text = link_text(parent, node.name.c_str());
  if (!text && is_gone(text.error().errno_value)) return remove(node);
  if (!text) return unreadable(text.error(), path);
  if (auto made = tree_.become(node, NodeType::kLink); !made) return made;
  set_size(node, text->size());
  auto oid = batch_.add(ObjectKind::kBlob, std::move(*text));
  if (!oid) return fail(oid.error());
  if (node.content != *oid) node.touch();
  node.content = *oid;
  node.marks = 0;
  if (status.st_nlink > 1) {
    auto& inode = linked_[status.st_ino];
    inode.paths.push_back(path);
    inode.links = status.st_nlink;
  } else if (tree_.links().find(path)) {
    alone_.push_back(path);
  }
  return set_attributes(node, attributes_of(status));
}

Result<void> Capture::remove(Node& node) {
  if (auto forgotten = tree_.forget(node); !forgotten) return forgotten;
  const bool is_known_here = node.known && (node.origin.empty() || !trust_.recognizes);
  if (trust_.index && is_known_here) trust_.index->removed(node.path());
  if (Node* parent = node.parent) {
    parent->touch();
    parent->take_child(node.name);
  }
  return {};
}

/// Nothing at the path that this was moved away from is what the index has there.
void Capture::leave_origin(const Node& node) {
  if (trust_.recognizes && node.known && !node.origin.empty())
    moves_.emplace_back(node.origin, std::string());
}

Result<void> Capture::set_attributes(Node& node, Attributes attributes) {
  if (node.attributes == attributes) return {};
  node.attributes = std::move(attributes);
  node.touch();
  return {};
}

void Capture::set_size(Node& node, std::uint64_t size) {
  if (node.size == size) return;
  if (node.type == NodeType::kFile) tree_.totals().bytes += size - node.size;
  node.size = size;
  node.touch();
}

Result<void> Capture::tell_progress() {
  constexpr std::uint64_t kBytes = 8 << 20;
  if (!progress_ || (found_.entries % 512 != 0 && found_.bytes - told_at_bytes_ < kBytes)) return {};
  told_at_bytes_ = found_.bytes;
  if (progress_("reading", found_.entries, 0)) return {};
  return stopped();
}

/// Folders that were recognised keep what the index knows of them, under their new paths. They may have
/// changed places with each other and with what is gone, so all of them first go out of the way.
void Capture::log_moves() {
  auto lost = tree_.take_lost_origins();
  if (!trust_.index || !trust_.recognizes) return;
  for (auto& origin : lost) moves_.emplace_back(std::move(origin), std::string());
  std::sort(moves_.begin(), moves_.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::size_t number = 0;
  for (auto& [from, to] : moves_) {
    std::string aside = "\x01" + std::to_string(number++);
    trust_.index->moved(from, aside);
    from = std::move(aside);
  }
  std::sort(moves_.begin(), moves_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (const auto& [aside, to] : moves_)
    to.empty() ? trust_.index->removed(aside) : trust_.index->moved(aside, to);
}

}  // namespace okcvm::snapshots
