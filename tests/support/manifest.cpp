#include "tests/support/manifest.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <string_view>
#include <system_error>

#include "policy/file_descriptor.h"

namespace okcvm::test {
namespace {

[[noreturn]] void give_up(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// FNV-1a, 64 bits.
std::uint64_t hash_content(int file, const std::string& path) {
  std::uint64_t hash = 14695981039346656037ULL;
  std::vector<char> buffer(1 << 16);
  for (;;) {
    const auto got = ::read(file, buffer.data(), buffer.size());
    if (got < 0) give_up("read " + path);
    if (got == 0) return hash;
    for (ssize_t i = 0; i < got; ++i)
      hash = (hash ^ static_cast<unsigned char>(buffer[static_cast<std::size_t>(i)])) * 1099511628211ULL;
  }
}

std::map<std::string, std::string> xattrs_of(const std::string& path) {
  std::map<std::string, std::string> found;
  std::string names(XATTR_LIST_MAX, '\0');
  const auto size = ::llistxattr(path.c_str(), names.data(), names.size());
  if (size < 0) {
    if (errno == EOPNOTSUPP || errno == EPERM) return found;
    give_up("llistxattr " + path);
  }
  names.resize(static_cast<std::size_t>(size));
  for (std::size_t at = 0; at < names.size(); at += std::strlen(names.c_str() + at) + 1) {
    const char* name = names.c_str() + at;
    if (!std::string_view(name).starts_with("user.")) continue;
    std::string value(XATTR_SIZE_MAX, '\0');
    const auto length = ::lgetxattr(path.c_str(), name, value.data(), value.size());
    if (length < 0) give_up("lgetxattr " + path);
    value.resize(static_cast<std::size_t>(length));
    found.emplace(name, std::move(value));
  }
  return found;
}

std::string target_of(const std::string& path) {
  std::string text(PATH_MAX, '\0');
  const auto size = ::readlink(path.c_str(), text.data(), text.size());
  if (size < 0) return ::strerrorname_np(errno);
  text.resize(static_cast<std::size_t>(size));
  return text;
}

class Reader {
 public:
  explicit Reader(std::string top) : top_(std::move(top)) {}

  Manifest read() {
    visit(".");
    return std::move(manifest_);
  }

 private:
  void visit(const std::string& relative) {
    const std::string path = top_ + "/" + relative;
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) give_up("lstat " + path);
    ManifestEntry entry;
    entry.mode = found.st_mode;
    entry.uid = found.st_uid;
    entry.gid = found.st_gid;
    entry.links = found.st_nlink;
    entry.modified = found.st_mtim;
    if (!S_ISLNK(found.st_mode)) entry.xattrs = xattrs_of(path);
    if (S_ISLNK(found.st_mode)) entry.target = target_of(path);
    if (S_ISREG(found.st_mode)) read_file(path, found, entry);
    if (!S_ISDIR(found.st_mode) && found.st_nlink > 1)
      entry.same_as = first_path_.try_emplace(found.st_ino, relative).first->second;
    manifest_.emplace(relative, std::move(entry));
    if (S_ISDIR(found.st_mode)) visit_children(relative, path);
  }

  static void read_file(const std::string& path, const struct stat& found, ManifestEntry& entry) {
    entry.size = found.st_size;
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
    if (!file) give_up("open " + path);
    entry.content = hash_content(file.get(), path);
  }

  void visit_children(const std::string& relative, const std::string& path) {
    std::map<std::string, int> names;  // sorted, so that same_as means the same in every tree
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(path.c_str()), ::closedir);
    if (!stream) give_up("opendir " + path);
    while (const dirent* child = ::readdir(stream.get())) names.emplace(child->d_name, 0);
    names.erase(".");
    names.erase("..");
    for (const auto& [name, unused] : names) visit(relative == "." ? name : relative + "/" + name);
  }

  std::string top_;
  Manifest manifest_;
  std::map<ino_t, std::string> first_path_;
};

template <typename T>
void compare(std::vector<std::string>& lines, const std::string& path, const char* what, const T& left,
             const T& right) {
  if (left == right) return;
  if constexpr (std::is_arithmetic_v<T>)
    lines.push_back(path + ": " + what + " " + std::to_string(left) + " | " + std::to_string(right));
  else
    lines.push_back(path + ": " + what + " " + left + " | " + right);
}

std::string text_of(const timespec& time) {
  return std::to_string(time.tv_sec) + "." + std::to_string(time.tv_nsec);
}

std::string text_of(const std::map<std::string, std::string>& xattrs) {
  std::string text;
  for (const auto& [name, value] : xattrs) text += name + "=" + value.substr(0, 32) + ";";
  return text;
}

void compare_entries(std::vector<std::string>& lines, const std::string& path, const ManifestEntry& left,
                     const ManifestEntry& right, ManifestScope scope) {
  compare(lines, path, "mode", left.mode, right.mode);
  compare(lines, path, "links", left.links, right.links);
  compare(lines, path, "size", left.size, right.size);
  compare(lines, path, "target", left.target, right.target);
  compare(lines, path, "content", left.content, right.content);
  compare(lines, path, "same inode as", left.same_as, right.same_as);
  if (left.xattrs != right.xattrs)
    compare(lines, path, "xattrs", text_of(left.xattrs), text_of(right.xattrs));
  if (scope.owners) {
    compare(lines, path, "uid", left.uid, right.uid);
    compare(lines, path, "gid", left.gid, right.gid);
  }
  if (scope.times) compare(lines, path, "mtime", text_of(left.modified), text_of(right.modified));
}

}  // namespace

Manifest manifest_of(const std::filesystem::path& top) {
  return Reader(top).read();
}

std::vector<std::string> differences(const Manifest& left, const Manifest& right, ManifestScope scope) {
  std::vector<std::string> lines;
  for (const auto& [path, entry] : left) {
    const auto other = right.find(path);
    if (other == right.end())
      lines.push_back(path + ": only on the left");
    else
      compare_entries(lines, path, entry, other->second, scope);
  }
  for (const auto& [path, entry] : right)
    if (!left.contains(path)) lines.push_back(path + ": only on the right");
  return lines;
}

}  // namespace okcvm::test
