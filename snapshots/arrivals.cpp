#include "snapshots/arrivals.h"

#include <fcntl.h>

#include <chrono>

#include "snapshots/path_text.h"

namespace okcvm::snapshots {
namespace {

class Arrivals final {
 public:
  Arrivals(const Disk& disk, const Tree& after, StatIndex& index)
      : disk_(disk), after_(after), index_(index) {}

  void note(const Delta& delta) {
    if (delta.after->is_directory())
      directory(*delta.after, delta.path, delta.extent);
    else if (const auto parent = disk_.open_directory(parent_of(delta.path)))
      file(*delta.after, parent->get(), delta.path);
  }

 private:
  void directory(Node& node, const std::string& path, Extent extent) {
    auto fd = disk_.open_directory(path);
    if (!fd || !after_.load(node)) return;
    if (const auto identity = identity_of(fd->get())) index_.saw_folder(path, *identity);
    if (extent == Extent::kAlone) return;
    for (const auto& child : node.children) file(*child, fd->get(), below(path, child->name));
    fd->reset();  // so that a deep tree needs no more than one descriptor
    for (const auto& child : node.children)
      if (child->is_directory()) directory(*child, below(path, child->name), extent);
  }

  void file(const Node& node, int parent, const std::string& path) {
    if (node.type != NodeType::kFile) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    struct stat status {};
    if (::fstatat(parent, node.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return;
    const timespec& modified = node.attributes.modified;
    if (S_ISREG(status.st_mode) && static_cast<std::uint64_t>(status.st_size) == node.size &&
        status.st_mtim.tv_sec == modified.tv_sec && status.st_mtim.tv_nsec == modified.tv_nsec)
      index_.saw_file(path, stamp_of(status), std::chrono::nanoseconds(now).count());
  }

  const Disk& disk_;
  const Tree& after_;
  StatIndex& index_;
};

}  // namespace

void note_arrivals(const Work& work, const Disk& disk, const Tree& after, StatIndex& index) {
  Arrivals arrivals(disk, after, index);
  for (const auto& [from, entry, round] : work.names) {
    if (from.empty())
      arrivals.note(entry);
    else
      index.moved(from, entry.path);
  }
  for (const auto& delta : work.rest) {
    if (!delta.top || delta.keeps_entry()) continue;
    index.removed(delta.path);
    if (delta.after) arrivals.note(delta);
  }
}

}  // namespace okcvm::snapshots
