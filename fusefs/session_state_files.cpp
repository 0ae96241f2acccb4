#include <atomic>

#include "fusefs/session_state_layout.h"
#include "policy/fault.h"

namespace okcvm::fusefs {
namespace {

constexpr std::uint32_t kOpenFlags = (1u << 24) - 1;  // all that Linux has
constexpr std::uint32_t kSyncErrors = (1u << 7) - 1;

SessionState::OpenFile open_file(const FileRecord& row) {
  return {NodeId{row.node}, static_cast<int>(row.flags)};
}

std::uint32_t slot_of(FileId id) {
  return static_cast<std::uint32_t>(id.value) - 1;
}

}  // namespace

Result<FileId> SessionState::add_file(const OpenFile& file, std::uint64_t unique) {
  MutexLock lock(mutex_);
  std::uint32_t slot = next_file_;
  if (!free_files_.empty()) {
    slot = free_files_.back();
    free_files_.pop_back();
  } else {
    if (next_file_ >= kMaxFiles) return fail_errno(ENFILE);
    if (auto ready = region_.reserve(kFilesOffset + (next_file_ + 1) * sizeof(FileRecord)); !ready)
      return fail(ready.error());
    header().next_file = ++next_file_;
  }
  FileRecord& row = file_record(region_, slot);
  row.node = file.node.value;
  row.flags = static_cast<std::uint32_t>(file.flags) & kOpenFlags;
  row.sync_error = 0;
  row.unique = unique;
  const FileId id{(std::uint64_t{++row.generation} << 32) | (slot + 1)};
  fault_point("files.opened");
  row.id.store(id.value);
  return id;
}

FileRecord* SessionState::find_file(FileId id) const {
  const std::uint32_t slot = slot_of(id);
  if (slot >= next_file_) return nullptr;
  FileRecord& row = file_record(region_, slot);
  return row.id.load() == id.value ? &row : nullptr;
}

std::optional<SessionState::OpenFile> SessionState::file(FileId id) const {
  MutexLock lock(mutex_);
  const FileRecord* const row = find_file(id);
  if (!row) return std::nullopt;
  return open_file(*row);
}

std::optional<SessionState::OpenFile> SessionState::remove_file(FileId id) {
  MutexLock lock(mutex_);
  FileRecord* const row = find_file(id);
  if (!row) return std::nullopt;
  const OpenFile file = open_file(*row);
  row->id.store(0);
  fault_point("files.closed");
  free_files_.push_back(slot_of(id));
  return file;
}

std::optional<FileId> SessionState::file_opened_by(std::uint64_t unique) const {
  MutexLock lock(mutex_);
  for (std::uint32_t slot = 0; slot < next_file_; ++slot) {
    const FileRecord& row = file_record(region_, slot);
    if (row.id.load() && row.unique == unique) return FileId{row.id.load()};
  }
  return std::nullopt;
}

std::vector<SessionState::OpenFile> SessionState::all_files() const {
  std::vector<OpenFile> files;
  MutexLock lock(mutex_);
  for (std::uint32_t slot = 0; slot < next_file_; ++slot) {
    const FileRecord& row = file_record(region_, slot);
    if (row.id.load()) files.push_back(open_file(row));
  }
  return files;
}

void SessionState::note_sync_error(NodeId node, int errno_value) {
  MutexLock lock(mutex_);
  for (std::uint32_t slot = 0; slot < next_file_; ++slot) {
    FileRecord& row = file_record(region_, slot);
    if (row.id.load() == 0 || row.node != node.value || (row.sync_error && !row.is_told)) continue;
    row.sync_error = static_cast<std::uint32_t>(errno_value) & kSyncErrors;
    row.is_told = 0;
  }
}

int SessionState::take_sync_error(FileId id, std::uint64_t unique) {
  MutexLock lock(mutex_);
  FileRecord* const row = find_file(id);
  if (!row || row->sync_error == 0) return 0;
  if (row->is_told && row->unique != unique) return 0;
  row->unique = unique;
  std::atomic_thread_fence(std::memory_order_release);  // the next daemon must not find it told to nobody
  row->is_told = 1;
  return row->sync_error;
}

std::uint64_t SessionState::open_count() const {
  MutexLock lock(mutex_);
  return next_file_ - free_files_.size();
}

}  // namespace okcvm::fusefs
