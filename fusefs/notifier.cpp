#include "fusefs/notifier.h"

#include <linux/fuse.h>

#include <climits>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

namespace okcvm::fusefs {
namespace {

constexpr std::uint32_t kKnowsExpiry = 38;  // FUSE 7.38: FUSE_EXPIRE_ONLY
constexpr std::chrono::seconds kRestsAfter{2};

template <typename Body>
std::vector<std::byte> message(fuse_notify_code code, const Body& body, const std::string& name = {}) {
  const std::size_t name_size = name.empty() ? 0 : name.size() + 1;
  fuse_out_header header{};
  header.len = static_cast<std::uint32_t>(sizeof header + sizeof body + name_size);
  header.error = code;
  std::vector<std::byte> bytes(header.len);
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header, &body, sizeof body);
  if (name_size) std::memcpy(bytes.data() + sizeof header + sizeof body, name.c_str(), name_size);
  return bytes;
}

/// Of all pages and attributes from `offset` on, or of kAttributesAlone.
std::vector<std::byte> inode_message(NodeId id, std::int64_t offset) {
  return message(FUSE_NOTIFY_INVAL_INODE, fuse_notify_inval_inode_out{id.value, offset, 0});
}

}  // namespace

void Notifier::start(int device, const std::filesystem::path& mount_point, SessionState& state) {
  const MutexLock lock(mutex_);
  device_ = device;
  mount_point_ = mount_point;
  state_ = &state;
}

void Notifier::push(Notice notice) {
  const MutexLock lock(mutex_);
  if (is_cut_ || device_ < 0) return;
  queue_.push_back(std::move(notice));
  ++pushed_;
  have_thread();
  changed_.notify_all();
}

/// Where the host has no more threads, what is asked waits for the next that asks, for who waits for it, or
/// for the next daemon.
void Notifier::have_thread() {
  if (is_running_ || is_cut_ || (queue_.empty() && idle_lines_.empty())) return;
  if (thread_.joinable()) thread_.join();  // it rests, and has let go of the lock
  try {
    thread_ = std::thread([this] { run(); });
    is_running_ = true;
  } catch (const std::exception&) {  // nor memory for one
    if (!queue_.empty()) was_late();
  }
}

void Notifier::run() {
  do {
    const MutexLock lock(mutex_);
    const auto has_more = [this]() REQUIRES(mutex_) { return is_cut_ || !queue_.empty(); };
    if (!changed_.wait_for(mutex_, kRestsAfter, has_more)) {
      for (const auto& line : idle_lines_) std::erase(lines_, line);
      idle_lines_.clear();
      is_running_ = false;
      return;
    }
  } while (tell_next(Waiting::kEndless));
}

/// Nothing is forgotten unless the kernel has taken it, or nobody may wait any more.
bool Notifier::tell_next(Waiting waiting) {
  std::vector<std::byte> messages;
  std::vector<Notice> notices;
  {
    const MutexLock lock(mutex_);
    if (is_cut_ || queue_.empty()) return false;
    while (!queue_.empty() && (notices.empty() || !notices.back().then)) {
      const auto bytes = message_of(queue_.front());
      if (!notices.empty() && messages.size() + bytes.size() > Teller::kMost) break;
      messages.insert(messages.end(), bytes.begin(), bytes.end());
      notices.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  const auto late = times_late();
  bool is_late = false;
  Told told = Told::kByNobody;
  try {
    told = tell(std::move(messages), waiting);
    is_late = waiting == Waiting::kShort && times_late() != late;
  } catch (const std::exception&) {  // for lack of memory
    was_late();
  }
  try {
    if (!is_late && notices.back().then) notices.back().then(told);
  } catch (const std::exception&) {
    was_late();
  }
  const MutexLock lock(mutex_);
  if (is_late)
    queue_.insert(queue_.begin(), std::move_iterator(notices.begin()), std::move_iterator(notices.end()));
  else
    told_ += notices.size();
  changed_.notify_all();
  return true;
}

/// Where the host has no more threads.
void Notifier::tell_in_place() {
  const auto late = times_late();
  while (times_late() == late && tell_next(Waiting::kShort)) {
  }
  const MutexLock lock(mutex_);
  is_running_ = false;
  if (times_late() == late) have_thread();  // for what was asked for since the last look
}

std::vector<std::byte> Notifier::message_of(const Notice& notice) const {
  // No file has such a name; to look for it the kernel locks the directory, as renames do until their end.
  static const std::string no_name(NAME_MAX + 1, '?');
  if (notice.manner == Manner::kLookUp) return look_up_message(mount_point_, notice.name, notice.inode);
  if (notice.manner == Manner::kAsk) return inode_message(notice.node, kAttributesAlone);
  const std::string& name = notice.then ? no_name : notice.name;
  if (name.empty()) return inode_message(notice.node, 0);
  fuse_notify_inval_entry_out out{};
  out.parent = notice.node.value;
  out.namelen = static_cast<std::uint32_t>(name.size());
  const bool can_expire = state_->protocol_minor() >= kKnowsExpiry;
  if (notice.manner == Manner::kExpireOrNothing && !can_expire) return {};
  if (notice.manner != Manner::kDrop && can_expire) out.flags = FUSE_EXPIRE_ONLY;
  return message(FUSE_NOTIFY_INVAL_ENTRY, out, name);
}

Notifier::Told Notifier::tell(std::vector<std::byte> notices, Waiting waiting) {
  if (notices.empty()) return Told::kYes;
  if (waiting == Waiting::kShort && is_held_up()) {
    was_late();
    return Told::kLate;
  }
  auto line = take_line();
  if (!line) return Told::kByNobody;
  auto told = line->tell(device_, notices, kTimeout);
  while (told == Told::kLate) {
    Teller::look_after();
    if (waiting == Waiting::kShort) break;
    told = line->wait(device_, notices, kTimeout);
  }
  if (told != Told::kYes && told != Told::kNotFound) was_late();
  return give_back(std::move(line), told);
}

bool Notifier::is_held_up() {
  const MutexLock lock(mutex_);
  std::erase_if(late_lines_, [this](const auto& line) REQUIRES(mutex_) {
    if (!line->is_done()) return false;
    idle_lines_.push_back(line);
    return true;
  });
  return late_lines_.size() >= kMostLate;
}

std::shared_ptr<Teller::Line> Notifier::take_line() {
  const MutexLock lock(mutex_);
  if (is_cut_) return nullptr;
  if (idle_lines_.empty()) {
    lines_.push_back(Teller::Line::open(mount_point_));
    return lines_.back();
  }
  auto line = std::move(idle_lines_.back());
  idle_lines_.pop_back();
  return line;
}

Notifier::Told Notifier::give_back(std::shared_ptr<Teller::Line> line, Told told) {
  const MutexLock lock(mutex_);
  (told == Told::kLate ? late_lines_ : idle_lines_).push_back(std::move(line));
  have_thread();  // which ends the lines that are not used any more
  return is_cut_ ? Told::kByNobody : told;
}

bool Notifier::inode_now(NodeId id) {
  return tell(inode_message(id, 0), Waiting::kShort) == Told::kYes;
}

bool Notifier::links_now(std::span<const NodeId> ids) {
  std::vector<std::byte> messages;
  for (const NodeId id : ids) {
    const auto bytes = inode_message(id, 0);
    if (messages.size() + bytes.size() > Teller::kMost && tell(std::exchange(messages, {})) != Told::kYes)
      return false;
    messages.insert(messages.end(), bytes.begin(), bytes.end());
  }
  return tell(std::move(messages)) == Told::kYes;
}

void Notifier::attributes_now(NodeId id) {
  write_notices(device_, inode_message(id, kAttributesAlone));
}

void Notifier::moving_directory_now(NodeId id) {
  write_notices(device_, inode_message(id, 0));
}

void Notifier::was_late() {
  ++times_late_;
  state_->set_untold();
}

void Notifier::drain_while_told(std::chrono::seconds timeout) {
  if (takes_telling_over()) tell_in_place();
  const MutexLock lock(mutex_);
  if (!is_running_ && !queue_.empty()) return Teller::look_after();  // it was late already
  const auto is_told = [this, last = pushed_]() REQUIRES(mutex_) { return is_cut_ || told_ >= last; };
  for (auto seen = told_; !changed_.wait_for(mutex_, timeout, is_told); seen = told_) {
    if (told_ != seen) continue;
    was_late();
    return Teller::look_after();
  }
}

bool Notifier::takes_telling_over() {
  const MutexLock lock(mutex_);
  have_thread();
  return !queue_.empty() && !std::exchange(is_running_, true);
}

bool Notifier::drain_for(std::chrono::milliseconds time) {
  const MutexLock lock(mutex_);
  const auto is_told = [this, last = pushed_]() REQUIRES(mutex_) { return told_ >= last; };
  changed_.wait_for(mutex_, time, [&]() REQUIRES(mutex_) { return is_cut_ || is_told(); });
  return is_told();
}

void Notifier::cut() {
  const MutexLock lock(mutex_);
  is_cut_ = true;
  queue_.clear();
  changed_.notify_all();
  for (const auto& line : lines_) line->cut();
}

void Notifier::stop() {
  cut();
  if (thread_.joinable()) thread_.join();
}

}  // namespace okcvm::fusefs
