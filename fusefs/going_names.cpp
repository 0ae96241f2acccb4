#include "fusefs/going_names.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <sstream>
#include <string>

namespace okcvm::fusefs {
namespace {

constexpr std::size_t kMost = 1 << 20;  // of a directory that many sessions share
constexpr int kFlags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
constexpr char kStatus = '/';                    // what a line with one begins with, and no path
constexpr std::size_t kLongestStatus = 14 * 21;  // of numbers with 64 bits

void write(std::ostream& text, NodeId what, const struct stat& status) {
  text << kStatus << what.value << ' ' << status.st_ino << ' ' << status.st_mode << ' ' << status.st_uid
       << ' ' << status.st_gid << ' ' << status.st_size << ' ' << status.st_blocks << ' '
       << status.st_blksize;
  for (const timespec& time : {status.st_atim, status.st_mtim, status.st_ctim})
    text << ' ' << time.tv_sec << ' ' << time.tv_nsec;
  text << '\0';
}

std::optional<std::pair<NodeId, struct stat>> status_in(std::string_view line) {
  std::istringstream text(std::string(line.substr(1)));
  NodeId what;
  struct stat status {};
  text >> what.value >> status.st_ino >> status.st_mode >> status.st_uid >> status.st_gid >> status.st_size >>
      status.st_blocks >> status.st_blksize;
  for (timespec* time : {&status.st_atim, &status.st_mtim, &status.st_ctim})
    text >> time->tv_sec >> time->tv_nsec;
  if (!text || !text.eof()) return std::nullopt;
  return std::pair(what, status);
}

}  // namespace

GoingNames::GoingNames(std::filesystem::path path, Start start) : path_(std::move(path)) {
  if (start == Start::kAnew) ::unlink(path_.c_str());
  file_ = FileDescriptor(::open(path_.c_str(), kFlags));
  is_unread_ = !file_ && errno != ENOENT;
  struct stat status {};
  if (file_ && ::fstat(file_.get(), &status) == 0) size_ = static_cast<std::size_t>(status.st_size);
}

bool GoingNames::put(std::string_view text) {
  const ssize_t written = ::write(file_.get(), text.data(), text.size());
  if (written > 0) size_ += static_cast<std::size_t>(written);
  return written == static_cast<ssize_t>(text.size());
}

bool GoingNames::note(const std::vector<RelPath>& paths) {
  if (paths.empty()) return true;
  if (!file_) file_ = FileDescriptor(::open(path_.c_str(), kFlags | O_CREAT, 0600));
  if (!file_) return false;
  std::string text;
  for (const RelPath& path : paths) {
    if (size_ + text.size() > kMost) break;  // that there are more than fit is to be seen by then
    text += path.text() + '\0';
  }
  return put(text);
}

void GoingNames::note(const Statuses& statuses) {
  const std::size_t before = size_;
  const std::size_t room = before < kMost ? (kMost - before) / kLongestStatus : 0;
  std::ostringstream text;
  for (const auto& [what, status] : std::span(statuses).first(std::min(room, statuses.size())))
    write(text, what, status);
  if (!file_ || put(text.str())) return;
  if (::ftruncate(file_.get(), static_cast<off_t>(before)) == 0) size_ = before;  // the names are whole still
}

std::optional<std::string> GoingNames::text() const {
  if (is_unread_) return std::nullopt;
  std::string text(size_, '\0');
  if (size_ && ::pread(file_.get(), text.data(), size_, 0) != static_cast<ssize_t>(size_))
    return std::nullopt;
  return text;
}

template <typename Each>
void GoingNames::for_each_line(const Each& each) const {
  const auto text = this->text().value_or("");
  for (std::size_t start = 0, end = 0; (end = text.find('\0', start)) != text.npos; start = end + 1)
    each(std::string_view(text).substr(start, end - start));
}

std::vector<RelPath> GoingNames::all() const {
  std::vector<RelPath> paths;
  for_each_line([&](std::string_view line) {
    if (auto path = RelPath::parse(line)) paths.push_back(std::move(*path));
  });
  return paths;
}

GoingNames::Statuses GoingNames::statuses() const {
  Statuses statuses;
  for_each_line([&](std::string_view line) {
    if (!line.starts_with(kStatus)) return;
    if (const auto found = status_in(line)) statuses.push_back(*found);
  });
  return statuses;
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
