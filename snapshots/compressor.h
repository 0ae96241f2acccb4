#pragma once

#include <condition_variable>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "policy/error.h"
#include "policy/thread_annotations.h"
#include "snapshots/pack_writer.h"

namespace okcvm::snapshots {

/// Deflates objects into a pack, on a second thread once there are many. Its own thread apart, one thread's.
class Compressor final {
 public:
  /// `folder` is borrowed.
  Compressor(int folder, std::string name) : writer_(folder, std::move(name)) {}
  ~Compressor();
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  Result<void> add(const Oid& oid, ObjectKind kind, std::string bytes) EXCLUDES(mutex_);
  /// After the last object. Answers the pack's checksum; nothing if there was no object.
  Result<std::optional<Oid>> finish() EXCLUDES(mutex_);

 private:
  struct Job {
    Oid oid;
    ObjectKind kind;
    std::string bytes;
  };
  using Jobs = std::vector<Job>;
  void work() EXCLUDES(mutex_);
  Result<void> compress(const Jobs& jobs) EXCLUDES(mutex_);
  Result<void> hand_over() EXCLUDES(mutex_);
  void stop() EXCLUDES(mutex_);

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Jobs> waiting_ GUARDED_BY(mutex_);
  bool ended_ GUARDED_BY(mutex_) = false;
  std::optional<Error> failed_ GUARDED_BY(mutex_);
  PackWriter writer_ GUARDED_BY(mutex_);
  std::thread helper_;
  Jobs collected_;  // the caller's, until there are enough for the helper
  std::size_t collected_bytes_ = 0;
  std::size_t added_ = 0;
};

}  // namespace okcvm::snapshots
