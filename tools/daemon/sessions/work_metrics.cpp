#include "tools/daemon/sessions/work_metrics.h"

namespace okcvm::daemon {
namespace {

void note(WorkMetrics::Work& work, WorkMetrics::Time taken, const Error* refused) {
  if (refused)
    ++work.refused[text_of(refused->code).name];
  else
    work.times.add(taken);
}

}  // namespace

void TimeHistogram::add(std::chrono::nanoseconds taken) {
  const double value = std::chrono::duration<double>(taken).count();
  ++count;
  seconds += value;
  for (std::size_t i = 0; i < kBounds.size(); ++i)
    if (value <= kBounds[i]) ++within[i];
}

void WorkMetrics::created(Time taken, const Error* refused) {
  const MutexLock lock(mutex_);
  note(figures_.creations, taken, refused);
}

void WorkMetrics::deleted(Time taken, const Error* refused) {
  const MutexLock lock(mutex_);
  note(figures_.deletions, taken, refused);
}

void WorkMetrics::snapshot(Time taken, const Result<snapshots::Snapshot>& result, bool is_new) {
  if (result && !is_new) return;  // the newest one was the answer
  const MutexLock lock(mutex_);
  note(figures_.snapshots, taken, result ? nullptr : &result.error());
  if (!result) return;
  figures_.snapshot_bytes += result->stats.bytes_read;
  figures_.snapshot_entries += result->stats.changed;
  if (result->stats.rescanned) ++figures_.rescans;
}

void WorkMetrics::restored(Time taken, const Result<snapshots::RestoreResult>& result) {
  const MutexLock lock(mutex_);
  note(figures_.restores, taken, result ? nullptr : &result.error());
  if (result) figures_.restored_entries += result->applied.size();
}

void WorkMetrics::received(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  figures_.received_bytes += bytes;
}

WorkMetrics::Figures WorkMetrics::figures() const {
  const MutexLock lock(mutex_);
  return figures_;
}

}  // namespace okcvm::daemon
