#include "fusefs/going_names.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace okcvm::fusefs {
namespace {

constexpr std::size_t kMost = 1 << 20;  // of a directory that many sessions share
constexpr int kFlags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW;

}  // namespace

GoingNames::GoingNames(std::filesystem::path path, Start start) : path_(std::move(path)) {
  if (start == Start::kAnew) ::unlink(path_.c_str());
  file_ = FileDescriptor(::open(path_.c_str(), kFlags));
  is_unread_ = !file_ && errno != ENOENT;
  struct stat status {};
  if (file_ && ::fstat(file_.get(), &status) == 0) size_ = static_cast<std::size_t>(status.st_size);
}

bool GoingNames::note(const RelPath& path) {
  if (!file_) file_ = FileDescriptor(::open(path_.c_str(), kFlags | O_CREAT, 0600));
  if (!file_) return false;
  if (size_ > kMost) return true;  // that there are more than fit is to be seen by now
  const std::string line = path.text() + '\0';
  const ssize_t put = ::write(file_.get(), line.data(), line.size());
  if (put > 0) size_ += static_cast<std::size_t>(put);
  return put == static_cast<ssize_t>(line.size());
}

std::optional<std::string> GoingNames::text() const {
  if (is_unread_) return std::nullopt;
  std::string text(size_, '\0');
  if (size_ && ::pread(file_.get(), text.data(), size_, 0) != static_cast<ssize_t>(size_))
    return std::nullopt;
  return text;
}

std::vector<RelPath> GoingNames::all() const {
  const auto text = this->text().value_or("");
  std::vector<RelPath> paths;
  for (std::size_t start = 0, end = 0; (end = text.find('\0', start)) != text.npos; start = end + 1)
    if (auto path = RelPath::parse(std::string_view(text).substr(start, end - start)))
      paths.push_back(std::move(*path));
  return paths;
}

bool GoingNames::has_all() const {
  const auto text = this->text();
  return text && text->size() <= kMost && !text->starts_with('\0') &&
         text->find(std::string(2, '\0')) == text->npos && (text->empty() || text->ends_with('\0'));
}

void GoingNames::clear() {
  if (!file_ && !is_unread_) return;
  ::unlink(path_.c_str());
  file_.reset();
  size_ = 0;
  is_unread_ = false;
}

}  // namespace okcvm::fusefs
