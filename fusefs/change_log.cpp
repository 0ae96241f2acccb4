#include "fusefs/change_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <span>

#include "fusefs/session_mount.h"
#include "policy/fault.h"

namespace okcvm::fusefs {

struct ChangeLog::Header {
  std::uint64_t magic;
  std::atomic<std::uint64_t> start;  // everything before it was retired; positions only grow
  std::atomic<std::uint64_t> end;    // records beyond it are not there
  std::atomic<std::uint64_t> base;   // position of the first byte that follows this header
  std::atomic<std::uint32_t> epoch;
  std::atomic<std::uint32_t> rescan;  // 0: no; else the epoch in which track was lost
  std::array<char, 96> reason;
  std::array<char, 40> counts_from;  // of a daemon of an older version: zeros

  std::string_view state_counted_from() const {
    return {counts_from.data(), ::strnlen(counts_from.data(), counts_from.size())};
  }
};

namespace {

constexpr std::uint64_t kMagic = 0x6f6b63766d636c01;  // "okcvmcl", version 1
constexpr std::uint64_t kRestingMagic = kMagic + 2;   // version 3 has a checksum
constexpr std::size_t kHeaderSize = 256;
constexpr std::size_t kMaxLog = 256u << 20;
constexpr std::size_t kUsefulLog = 8u << 20;  // past that one full comparison is cheaper than a replay

struct RecordHead {
  std::uint32_t size;  // of the whole record
  std::uint16_t path_size;
  std::uint16_t target_size;
  ChangeKind kind;
};

/// What a record at rest begins with; the changes follow as they are in the live one.
struct RestingHead {
  std::uint64_t magic = kRestingMagic;
  std::array<char, 40> counts_from{};
  std::uint64_t checksum = 0;  // CRC-32 of what it is counted from and of the changes
};

std::uint64_t checksum_of(const std::array<char, 40>& counts_from, const std::byte* records,
                          std::size_t size) {
  const auto start = crc32_z(0, reinterpret_cast<const Bytef*>(counts_from.data()), counts_from.size());
  return crc32_z(start, reinterpret_cast<const Bytef*>(records), size);
}

std::size_t padded_size(std::size_t text_size) {
  return (sizeof(RecordHead) + text_size + 7) / 8 * 8;
}

/// Whether records lie one after the other from the first of these bytes to the last, each of them sound.
bool are_records(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    RecordHead head;
    if (bytes.size() < sizeof head) return false;
    std::memcpy(&head, bytes.data(), sizeof head);
    const std::size_t text_size = std::size_t{head.path_size} + head.target_size;
    if (head.size != padded_size(text_size) || head.size > bytes.size() || head.kind > ChangeKind::kMoved)
      return false;
    const char* text = reinterpret_cast<const char*>(bytes.data() + sizeof head);
    if (!RelPath::parse({text, head.path_size}) || !RelPath::parse({text + head.path_size, head.target_size}))
      return false;
    bytes = bytes.subspan(head.size);
  }
  return true;
}

bool write_all(int fd, const std::byte* data, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

/// Makes the folder if it is not there. Whoever else could write to it would say what snapshots look at: then
/// nothing is kept there, nor believed, and it is closed to others from now on.
bool is_ours_alone(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0700) == 0) return true;
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid())
    return false;
  if (!(status.st_mode & 077)) return true;
  return ::chmod(folder.c_str(), 0700) == 0 && !(status.st_mode & 022);
}

bool make_empty(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC));
  return file && ::fsync(file.get()) == 0;
}

bool sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return directory && ::fsync(directory.get()) == 0;
}

}  // namespace

Result<std::unique_ptr<ChangeLog>> ChangeLog::open(Config config) {
  bool is_new = false;
  auto region = SharedRegion::open(config.live, kHeaderSize + kMaxLog, is_new);
  if (!region) return fail(region.error());
  if (config.start == Start::kTakeOver && is_new)
    return fail(Code::kCorrupt, "the change record of the session is missing");

  std::unique_ptr<ChangeLog> log(new ChangeLog(std::move(config), std::move(*region)));
  MutexLock lock(log->mutex_);
  if (log->config_.start == Start::kTakeOver) {
    if (auto there = log->find_records(); !there) return fail(there.error());
    // One that cannot be looked at counts as there: the first change takes it away, or says that it cannot.
    std::error_code unknown;
    log->resting_exists_ = std::filesystem::exists(log->config_.resting, unknown) || unknown;
    log->drop_damaged();
    log->distrust_unrecorded();
    return log;
  }
  const auto contents = is_new ? std::set<std::string>() : log->contents_of_lost_mount();
  log->region_.clear();
  if (auto ready = log->region_.reserve(kHeaderSize); !ready) return fail(ready.error());
  Header& header = log->header();
  std::memset(log->region_.data(), 0, kHeaderSize);
  header.epoch = 1;
  if (!log->load_resting() && log->config_.workspace_exists) {
    log->set_reason("the last stop of the host or the daemon was not a clean one");
    for (const auto& file : contents) log->write_record(ChangeKind::kContent, file, {});
  }
  header.magic = kMagic;
  log->drop_damaged();
  log->distrust_unrecorded();
  return log;
}

Result<void> ChangeLog::find_records() {
  if (auto ready = region_.reserve(kHeaderSize); !ready) return ready;
  const Header& state = header();
  if (state.magic != kMagic || state.end < state.start || state.start < state.base ||
      state.end - state.base > kMaxLog)
    return fail(Code::kCorrupt, "the change record of the session is damaged");
  return region_.reserve(kHeaderSize + (state.end - state.base));
}

/// A comparison of everything does not see by itself what was stored through a mapping of these, on a tmpfs.
std::set<std::string> ChangeLog::contents_of_lost_mount() {
  if (!find_records()) return {};
  drop_damaged();
  return contents_kept();
}

void ChangeLog::drop_damaged() {
  Header& state = header();
  const std::span all(region_.data() + kHeaderSize, state.end - state.base);
  if (are_records(all.subspan(state.start - state.base))) return;
  wake();
  set_reason("the record of changes was damaged");
  drop_until(state.end);
}

void ChangeLog::distrust_unrecorded() {
  if (config_.enabled) return;
  wake();
  set_reason("changes were not recorded for a time");
}

ChangeLog::Header& ChangeLog::header() const {
  return *reinterpret_cast<Header*>(region_.data());
}

std::uint32_t ChangeLog::epoch() const {
  return header().epoch.load(std::memory_order_relaxed);
}

void ChangeLog::record(ChangeKind kind, const RelPath& path, const RelPath& target) {
  if (!config_.enabled) return;
  MutexLock lock(mutex_);
  wake();
  if (std::max(path.text().size(), target.text().size()) < PATH_MAX)
    append(kind, path.text(), target.text());
  else
    set_reason("the path of a change has more than 4,095 bytes");
}

void ChangeLog::append(ChangeKind kind, std::string_view path, std::string_view target) {
  Header& state = header();
  // The next cut begins a comparison of everything, which sees this too; but of what is stored through a
  // mapping a tmpfs shows no trace.
  if (state.rescan == state.epoch && kind != ChangeKind::kContent) return;
  if (write_record(kind, path, target)) return;
  auto contents = contents_kept();
  if (kind == ChangeKind::kContent) contents.emplace(path);
  set_reason("the record of changes grew too long");
  drop_until(state.end);  // what will be compared anyway need not be kept
  for (const auto& file : contents) write_record(ChangeKind::kContent, file, {});
}

/// False: there is no room.
bool ChangeLog::write_record(ChangeKind kind, std::string_view path, std::string_view target) {
  Header& state = header();
  RecordHead head{};
  head.path_size = static_cast<std::uint16_t>(path.size());
  head.target_size = static_cast<std::uint16_t>(target.size());
  head.kind = kind;
  head.size = static_cast<std::uint32_t>(padded_size(path.size() + target.size()));
  const std::uint64_t end = state.end.load(std::memory_order_relaxed);
  const std::size_t offset = kHeaderSize + (end - state.base);
  if (end + head.size - state.start > kUsefulLog || offset + head.size > region_.size() ||
      !region_.reserve(offset + head.size))
    return false;
  std::byte* out = region_.data() + offset;
  std::memcpy(out, &head, sizeof head);
  char* const text = reinterpret_cast<char*>(out + sizeof head);
  path.copy(text, path.size());
  target.copy(text + path.size(), target.size());
  fault_point("changes.record");
  state.end.store(end + head.size, std::memory_order_release);
  return true;
}

/// The files whose content is recorded as changed; none if they take most of the log.
std::set<std::string> ChangeLog::contents_kept() const {
  std::set<std::string> files;
  std::size_t size = 0;
  for_each_record([&](const RecordHead& head, std::string_view path, std::string_view) {
    if (head.kind == ChangeKind::kContent && files.emplace(path).second) size += head.size;
  });
  if (size > kUsefulLog / 2) files.clear();
  return files;
}

void ChangeLog::lose_track(std::string_view reason) {
  if (!config_.enabled) return;
  MutexLock lock(mutex_);
  wake();
  set_reason(reason);
}

void ChangeLog::set_reason(std::string_view reason) {
  Header& state = header();
  state.reason.fill('\0');
  reason.copy(state.reason.data(), state.reason.size() - 1);
  state.rescan.store(state.epoch, std::memory_order_release);
}

/// The first change after a mount: the resting log is no longer the truth, and a crash of the host must find
/// it gone, or empty, which is not believed either.
void ChangeLog::wake() {
  if (!resting_exists_) return;
  is_stale_ = true;
  const bool is_gone = ::unlink(config_.resting.c_str()) == 0 || errno == ENOENT;
  if (!is_gone && !make_empty(config_.resting))
    return set_reason("an old record of changes cannot be removed");
  if (sync_folder(config_.resting.parent_path())) resting_exists_ = is_stale_ = false;
}

template <typename Visit>
void ChangeLog::for_each_record(Visit visit) const {
  const Header& state = header();
  const std::byte* at = region_.data() + kHeaderSize + (state.start - state.base);
  const std::byte* const end = region_.data() + kHeaderSize + (state.end - state.base);
  while (at < end) {
    RecordHead head;
    std::memcpy(&head, at, sizeof head);
    const char* text = reinterpret_cast<const char*>(at + sizeof head);
    visit(head, std::string_view(text, head.path_size),
          std::string_view(text + head.path_size, head.target_size));
    at += head.size;
  }
}

ChangeSet ChangeLog::cut() {
  ChangeSet set;
  MutexLock lock(mutex_);
  Header& state = header();
  set.end = state.end;
  set.counts_from = state.state_counted_from();
  if (state.rescan) {
    set.rescan = true;
    set.rescan_reason = state.reason.data();
    set.lost_at = state.rescan;
  }
  for_each_record([&](const RecordHead& head, std::string_view path_text, std::string_view target_text) {
    auto path = RelPath::parse(path_text);
    auto target = RelPath::parse(target_text);
    if (path && target) set.changes.push_back({head.kind, std::move(*path), std::move(*target)});
  });
  if (state.epoch.fetch_add(1) + 1 == 0) state.epoch = 1;
  return set;
}

void ChangeLog::retire(const ChangeSet& changes) {
  if (!config_.enabled) return;
  MutexLock lock(mutex_);
  Header& state = header();
  drop_until(changes.end);
  fault_point("changes.retire");
  if (changes.rescan && state.rescan == changes.lost_at) state.rescan = 0;
}

void ChangeLog::counts_from(std::string_view name) {
  if (!config_.enabled) return;
  MutexLock lock(mutex_);
  Header& state = header();
  if (state.state_counted_from() == name) return;
  wake();
  state.counts_from.fill('\0');
  name.copy(state.counts_from.data(), state.counts_from.size());
}

/// What is left goes to the front as soon as it fits where the dropped records were: it is there twice until
/// `base` says which counts.
void ChangeLog::drop_until(std::uint64_t position) {
  Header& state = header();
  const std::uint64_t end = state.end;
  const std::uint64_t start = std::clamp(position, state.start.load(), end);
  state.start = start;
  const std::uint64_t dropped = start - state.base;
  const std::uint64_t left = end - start;
  if (left > dropped) return;
  std::byte* const front = region_.data() + kHeaderSize;
  std::memcpy(front, front + dropped, left);
  fault_point("changes.front");
  state.base.store(start, std::memory_order_release);
  region_.shrink(kHeaderSize + left);
}

// -- Between mounts

void ChangeLog::rest(const std::function<bool()>& sync) {
  MutexLock lock(mutex_);
  if (is_stale_) wake();
  const Header& state = header();
  if (!config_.enabled || state.rescan || resting_exists_ || !sync()) return;
  const auto folder = config_.resting.parent_path();
  if (!is_ours_alone(folder)) return;
  const auto draft = draft_of_record(config_.resting);
  ::unlink(draft.c_str());
  const FileDescriptor file(
      ::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return;
  const std::byte* records = region_.data() + kHeaderSize + (state.start - state.base);
  const std::size_t size = state.end - state.start;
  RestingHead head{.counts_from = state.counts_from};
  head.checksum = checksum_of(head.counts_from, records, size);
  if (!write_all(file.get(), reinterpret_cast<const std::byte*>(&head), sizeof head) ||
      !write_all(file.get(), records, size) || ::fsync(file.get()) != 0 ||
      with_faults("changes.rest", [&] { return ::rename(draft.c_str(), config_.resting.c_str()); }) != 0 ||
      !sync_folder(folder))
    ::unlink(draft.c_str());
  else
    resting_exists_ = true;
}

bool ChangeLog::load_resting() {
  const FileDescriptor file(::open(config_.resting.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file || !is_ours_alone(config_.resting.parent_path())) return false;
  struct stat status {};
  RestingHead head;
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      ::read(file.get(), &head, sizeof head) != ssize_t{sizeof head} || head.magic != kRestingMagic)
    return false;
  const std::size_t size = static_cast<std::size_t>(status.st_size) - sizeof head;
  if (size > kMaxLog || !region_.reserve(kHeaderSize + size)) return false;
  std::byte* const records = region_.data() + kHeaderSize;
  if (::read(file.get(), records, size) != static_cast<ssize_t>(size) ||
      checksum_of(head.counts_from, records, size) != head.checksum)
    return false;
  header().end = size;
  header().counts_from = head.counts_from;
  resting_exists_ = true;
  return true;
}

}  // namespace okcvm::fusefs
