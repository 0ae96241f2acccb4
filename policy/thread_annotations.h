#pragma once

#include <pthread.h>

#include <condition_variable>
#include <mutex>

// Clang's thread-safety annotations; nothing elsewhere. The clang preset turns their warnings into errors.
#if defined(__clang__)
#define OKCVM_ANNOTATION(x) __attribute__((x))
#else
#define OKCVM_ANNOTATION(x)
#endif
#define CAPABILITY(x) OKCVM_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY OKCVM_ANNOTATION(scoped_lockable)
#define GUARDED_BY(x) OKCVM_ANNOTATION(guarded_by(x))
#define REQUIRES(...) OKCVM_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) OKCVM_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) OKCVM_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) OKCVM_ANNOTATION(release_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) OKCVM_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS OKCVM_ANNOTATION(no_thread_safety_analysis)

namespace okcvm {

/// A mutex that the analysis understands. Who finds it taken looks again for a moment before sleeping, which
/// costs much more than what is usually done under one (pthread_mutexattr_settype(3),
/// PTHREAD_MUTEX_ADAPTIVE_NP). `lock` and `unlock` make it usable with condition_variable_any.
class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() ACQUIRE() { pthread_mutex_lock(&mutex_); }
  void unlock() RELEASE() { pthread_mutex_unlock(&mutex_); }
  bool try_lock() TRY_ACQUIRE(true) { return pthread_mutex_trylock(&mutex_) == 0; }

 private:
  pthread_mutex_t mutex_ = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
};

/// Holds a Mutex for a scope.
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace okcvm
