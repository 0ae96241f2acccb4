#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/thread_annotations.h"

namespace okcvm::daemon {

/// Something that happened to a session, as the event stream tells it.
struct Event {
  std::string type;     // "session", "snapshot", "restore", "denial", "skill", "upload", "dropped"
  std::string session;  // id
  uid_t owner = 0;
  std::string data;  // a JSON object on one line
};

/// Hands events to whoever listens; costs next to nothing while nobody does. Thread-safe.
class EventHub final {
 public:
  /// A value of an event: JSON text, already encoded.
  using Field = std::pair<std::string_view, std::string>;
  static Field text(std::string_view name, std::string_view value);
  static Field number(std::string_view name, std::int64_t value);

  /// One that happens now.
  static Event event_of(std::string_view type, std::string_view session, uid_t owner,
                        const std::vector<Field>& fields);

  void publish(std::string_view type, std::string_view session, uid_t owner, const std::vector<Field>& fields)
      EXCLUDES(mutex_);
  bool has_listeners() const EXCLUDES(mutex_);

  /// Called on the publisher's thread and must not block. It hears until the handle is dropped.
  using Listener = std::function<void(const Event&)>;
  std::shared_ptr<void> listen(Listener listener) EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<Listener>> listeners_ GUARDED_BY(mutex_);
};

}  // namespace okcvm::daemon
