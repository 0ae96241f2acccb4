#include "snapshots/compressor.h"

#include <exception>
#include <system_error>
#include <utility>

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kHelpFrom = 256;   // objects; a thread is not worth its start for fewer
constexpr std::size_t kJobs = 64;        // handed over at a time: waking a thread costs more than an object
constexpr std::size_t kBytes = 1 << 20;  // or as soon as there are so many
constexpr std::size_t kQueue = 4;        // such portions waiting; past that the caller lends a hand

}  // namespace

Compressor::~Compressor() {
  stop();
}

Result<void> Compressor::add(const Oid& oid, ObjectKind kind, std::string bytes) {
  if (++added_ == kHelpFrom) {
    try {
      helper_ = std::thread([this] { work(); });
    } catch (const std::system_error&) {
      added_ = 0;  // no thread to be had: it works without
    }
  }
  collected_bytes_ += bytes.size();
  collected_.push_back({oid, kind, std::move(bytes)});
  return collected_.size() < kJobs && collected_bytes_ < kBytes ? Result<void>() : hand_over();
}

Result<void> Compressor::hand_over() {
  Jobs jobs = std::exchange(collected_, {});
  collected_bytes_ = 0;
  if (helper_.joinable()) {
    MutexLock lock(mutex_);
    if (failed_) return fail(*failed_);
    if (waiting_.size() < kQueue) {
      waiting_.push_back(std::move(jobs));
      changed_.notify_one();
      return {};
    }
  }
  return compress(jobs);
}

Result<void> Compressor::compress(const Jobs& jobs) {
  std::vector<PackEntry> entries;
  entries.reserve(jobs.size());
  for (const auto& job : jobs) {
    auto entry = make_pack_entry(job.oid, job.kind, job.bytes);
    if (!entry) return fail(entry.error());
    entries.push_back(std::move(*entry));
  }
  MutexLock lock(mutex_);
  for (const auto& entry : entries)
    if (auto added = writer_.add(entry); !added) return added;
  return {};
}

void Compressor::work() {
  while (true) {
    Jobs jobs;
    {
      MutexLock lock(mutex_);
      while (waiting_.empty() && !ended_) changed_.wait(mutex_);
      if (waiting_.empty()) return;
      jobs = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Result<void> done;
    try {
      done = compress(jobs);
    } catch (const std::exception&) {
      done = fail_errno(ENOMEM, "an object cannot be compressed");
    }
    if (done) continue;
    MutexLock lock(mutex_);
    failed_ = done.error();
    waiting_.clear();
    return;
  }
}

void Compressor::stop() {
  if (!helper_.joinable()) return;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  helper_.join();
}

Result<std::optional<Oid>> Compressor::finish() {
  if (auto handed = hand_over(); !handed) return fail(handed.error());
  stop();
  MutexLock lock(mutex_);
  if (failed_) return fail(*failed_);
  if (writer_.empty()) return std::optional<Oid>();
  auto checksum = writer_.finish();
  if (!checksum) return fail(checksum.error());
  return std::optional<Oid>(*checksum);
}

}  // namespace okcvm::snapshots
