#include "snapshots/staging.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "policy/fault.h"
#include "snapshots/io.h"
#include "snapshots/path_text.h"
#include "snapshots/store.h"

namespace okcvm::snapshots {
namespace {

constexpr std::string_view kWhat = "the restore cannot write";
constexpr std::size_t kBlock = 4096;

bool is_zero(std::string_view block) {
  return block.find_first_not_of('\0') == block.npos;
}

/// Writes pieces one after another; leaves out blocks of zeros if the file had holes.
class FileWriter {
 public:
  FileWriter(int fd, bool sparse, const std::string& path) : fd_(fd), sparse_(sparse), path_(path) {}

  Result<void> write(std::string_view piece) {
    while (!piece.empty()) {
      const auto block =
          piece.substr(0, sparse_ ? std::min(piece.size(), kBlock - size_ % kBlock) : piece.size());
      if (!sparse_ || !is_zero(block)) {
        fault_point("restore.write");
        if (const int injected = fault_error("restore.write")) return fail_errno(injected, kWhat, path_);
        if (auto written = write_all_at(fd_, block, size_, kWhat); !written) {
          Error error = written.error();
          error.path = path_;
          return fail(std::move(error));
        }
      }
      size_ += block.size();
      piece.remove_prefix(block.size());
    }
    return {};
  }
  std::uint64_t size() const { return size_; }

 private:
  int fd_;
  bool sparse_;
  const std::string& path_;
  std::uint64_t size_ = 0;
};

using Xattr = std::pair<std::string, std::string>;

bool has_xattr(int fd, const Xattr& wanted) {
  const auto& [name, value] = wanted;
  std::string there(value.size() + 1, '\0');
  const ssize_t size = ::fgetxattr(fd, name.c_str(), there.data(), there.size());
  return size >= 0 && std::string_view(there.data(), static_cast<std::size_t>(size)) == value;
}

/// Removes those in the user's namespace that have another value than is wanted, or none is.
Result<void> remove_other_xattrs(int fd, const std::vector<Xattr>& wanted, const std::string& path) {
  const auto listed = xattr_names(fd);
  if (!listed) return fail_errno(listed.error().errno_value, kWhat, path);
  const std::string& names = *listed;
  for (std::size_t at = 0; at < names.size(); at = names.find('\0', at) + 1) {
    const std::string_view name(names.data() + at);
    if (!name.starts_with("user.")) continue;
    const auto same = std::ranges::find(wanted, name, &Xattr::first);
    if ((same == wanted.end() || !has_xattr(fd, *same)) && ::fremovexattr(fd, name.data()) != 0)
      return fail_errno(errno, kWhat, path);
  }
  return {};
}

/// All of a file's may have to share little room (ext4: what the inode leaves free, and a block): whatever
/// goes is removed first, and the order matters. The largest come first; where they find no room so, the
/// smallest.
Result<void> set_xattrs(int fd, const Attributes& attributes, const std::string& path) {
  auto ordered = attributes.xattrs.list();
  const auto size_of = [](const Xattr& xattr) { return xattr.first.size() + xattr.second.size(); };
  if (auto removed = remove_other_xattrs(fd, ordered, path); !removed) return removed;
  std::ranges::stable_sort(ordered, std::ranges::greater(), size_of);
  const auto set_all = [&] {
    return std::ranges::all_of(ordered, [fd](const Xattr& xattr) {
      return has_xattr(fd, xattr) ||
             ::fsetxattr(fd, xattr.first.c_str(), xattr.second.data(), xattr.second.size(), 0) == 0;
    });
  };
  if (set_all()) return {};
  if (errno != ENOSPC) return fail_errno(errno, kWhat, path);
  if (auto removed = remove_other_xattrs(fd, {}, path); !removed) return removed;
  if (set_all()) return {};
  if (auto removed = remove_other_xattrs(fd, {}, path); !removed) return removed;
  std::ranges::reverse(ordered);
  if (!set_all()) return fail_errno(errno, kWhat, path);
  return {};
}

std::array<timespec, 2> times_of(const Attributes& attributes) {
  return {timespec{0, UTIME_OMIT}, attributes.modified};
}

}  // namespace

Result<void> set_attributes(int fd, const Attributes& attributes, const std::string& path) {
  fault_point("restore.attributes");
  if (const int injected = fault_error("restore.attributes")) return fail_errno(injected, kWhat, path);
  const auto times = times_of(attributes);
  // The owner first: changing it clears set-user-id bits.
  if (::fchown(fd, attributes.uid, attributes.gid) != 0 || ::fchmod(fd, attributes.mode) != 0)
    return fail_errno(errno, kWhat, path);
  if (auto set = set_xattrs(fd, attributes, path); !set) return set;
  if (::futimens(fd, times.data()) != 0) return fail_errno(errno, kWhat, path);
  return {};
}

Result<void> set_link_attributes(int directory, const char* name, const Attributes& attributes,
                                 const std::string& path) {
  fault_point("restore.attributes");
  if (const int injected = fault_error("restore.attributes")) return fail_errno(injected, kWhat, path);
  const auto times = times_of(attributes);
  if (::fchownat(directory, name, attributes.uid, attributes.gid, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::utimensat(directory, name, times.data(), AT_SYMLINK_NOFOLLOW) != 0)
    return fail_errno(errno, kWhat, path);
  return {};
}

Result<void> Staging::build(Tree& tree, Node& node, const std::string& path, const std::string& name,
                            Extent extent) {
  const Place place{path, name};
  if (!node.is_directory() || extent == Extent::kWithAllBelow)
    return build_entry(tree, node, place, folder());
  fault_point("restore.mkdir");
  if (const int injected = fault_error("restore.mkdir")) return fail_errno(injected, kWhat, path);
  if (::mkdirat(folder(), name.c_str(), 0700) != 0) return fail_errno(errno, kWhat, path);
  auto made = folder_.open_directory(name);
  if (!made) return fail(made.error());
  return set_attributes(made->get(), node.attributes, path);
}

Result<void> Staging::build_entry(Tree& tree, Node& node, const Place& place, int parent) {
  if (progress_ && ++built_ % 256 == 0 && !progress_("writing", built_, 0)) return stopped();
  if (node.is_directory()) {
    fault_point("restore.mkdir");
    if (const int injected = fault_error("restore.mkdir")) return fail_errno(injected, kWhat, place.path);
    if (::mkdirat(parent, leaf_of(place.staged).c_str(), 0700) != 0)
      return fail_errno(errno, kWhat, place.path);
    return build_directory(tree, node, place);
  }
  const auto group = tree.links().find(place.path);
  const std::string name = leaf_of(place.staged);
  if (group) {
    if (const auto made = linked_.find(*group); made != linked_.end()) {
      fault_point("restore.link");
      if (const int injected = fault_error("restore.link")) return fail_errno(injected, kWhat, place.path);
      auto source = made->second.disk->open(made->second.path, O_PATH | O_NOFOLLOW);
      if (!source) return fail(source.error());
      if (::linkat(source->get(), "", parent, name.c_str(), AT_EMPTY_PATH) != 0)
        return fail_errno(errno, kWhat, place.path);
      return {};
    }
  }
  auto built =
      node.type == NodeType::kLink ? build_link(node, place, parent) : build_file(node, place, parent);
  if (!built || !group) return built;
  use_for_group(*group, folder_, place.staged);
  return {};
}

Result<void> Staging::build_directory(Tree& tree, Node& node, const Place& place) {
  if (auto loaded = tree.load(node); !loaded) return loaded;
  auto fd = folder_.open_directory(place.staged);
  if (!fd) return fail(fd.error());
  std::vector<Node*> directories;
  for (const auto& child : node.children) {
    const Place inside{below(place.path, child->name), below(place.staged, child->name)};
    if (child->is_directory()) {
      directories.push_back(child.get());
      fault_point("restore.mkdir");
      if (const int injected = fault_error("restore.mkdir")) return fail_errno(injected, kWhat, inside.path);
      if (::mkdirat(fd->get(), child->name.c_str(), 0700) != 0) return fail_errno(errno, kWhat, inside.path);
    } else if (auto built = build_entry(tree, *child, inside, fd->get()); !built) {
      return built;
    }
  }
  fd->reset();  // so that a deep tree needs no more than one descriptor
  for (Node* child : directories) {
    const Place inside{below(place.path, child->name), below(place.staged, child->name)};
    if (auto built = build_directory(tree, *child, inside); !built) return built;
  }
  fd = folder_.open_directory(place.staged);
  if (!fd) return fail(fd.error());
  return set_attributes(fd->get(), node.attributes, place.path);
}

Result<void> Staging::write_ahead(const Work& work, Tree& wanted) {
  std::uint64_t number = 0;
  return for_each_incoming(work, wanted, [&](const std::string& path, const Node& node) -> Result<void> {
    std::string name = "ahead" + std::to_string(number++);
    if (progress_ && number % 256 == 0 && !progress_("writing", number, 0)) return stopped();
    if (auto made = make_file(node, {path, name}, folder()); !made) return fail(made.error());
    ahead_[{node.content, node.sparse}].push_back(std::move(name));
    ahead_bytes_ += node.size;
    return {};
  });
}

FileDescriptor Staging::take_ahead(const Node& node, int parent, const std::string& name) {
  const auto found = ahead_.find({node.content, node.sparse});
  if (found == ahead_.end()) return {};
  const std::string ahead = std::move(found->second.back());
  found->second.pop_back();
  if (found->second.empty()) ahead_.erase(found);
  ahead_bytes_ -= node.size;
  FileDescriptor file(::openat(folder(), ahead.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!file || ::renameat2(folder(), ahead.c_str(), parent, name.c_str(), RENAME_NOREPLACE) != 0) return {};
  return file;
}

Result<void> Staging::build_file(const Node& node, const Place& place, int parent) {
  if (const FileDescriptor fd = take_ahead(node, parent, leaf_of(place.staged)))
    return set_attributes(fd.get(), node.attributes, place.path);
  auto made = make_file(node, place, parent);
  if (!made) return fail(made.error());
  return set_attributes(made->get(), node.attributes, place.path);
}

/// With its content, but no attributes yet.
Result<FileDescriptor> Staging::make_file(const Node& node, const Place& place, int parent) {
  const std::string name = leaf_of(place.staged);
  fault_point("restore.create");
  if (const int injected = fault_error("restore.create")) return fail_errno(injected, kWhat, place.path);
  FileDescriptor fd(
      ::openat(parent, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return fail_errno(errno, kWhat, place.path);
  FileWriter writer(fd.get(), node.sparse, place.path);
  auto copied = repository_.read_stream(node.content, [&](std::string_view piece) -> Result<void> {
    if (progress_ && !progress_("writing", built_, 0)) return stopped();
    return writer.write(piece);
  });
  if (!copied) {
    Error error = copied.error();
    error.path = place.path;
    return fail(std::move(error));
  }
  if (writer.size() != node.size)
    return fail(Code::kCorrupt, "object " + node.content.hex() + " is not what the snapshot says",
                place.path);
  if (node.sparse && ::ftruncate(fd.get(), static_cast<off_t>(node.size)) != 0)
    return fail_errno(errno, kWhat, place.path);
  return fd;
}

Result<void> Staging::build_link(const Node& node, const Place& place, int parent) {
  auto text = repository_.read(node.content, ObjectKind::kBlob);
  if (!text) {
    Error error = text.error();
    error.path = place.path;
    return fail(std::move(error));
  }
  if (text->empty() || text->find('\0') != text->npos)
    return fail(Code::kCorrupt, "object " + node.content.hex() + " is not a link's text", place.path);
  const std::string name = leaf_of(place.staged);
  fault_point("restore.symlink");
  if (const int injected = fault_error("restore.symlink")) return fail_errno(injected, kWhat, place.path);
  if (::symlinkat(text->c_str(), parent, name.c_str()) != 0) return fail_errno(errno, kWhat, place.path);
  return set_link_attributes(parent, name.c_str(), node.attributes, place.path);
}

}  // namespace okcvm::snapshots
