#include "tools/daemon/sessions/event_hub.h"

#include <nlohmann/json.hpp>

#include "policy/iso_time.h"
#include "tools/daemon/host/clock.h"

namespace okcvm::daemon {

EventHub::Field EventHub::text(std::string_view name, std::string_view value) {
  using nlohmann::json;
  return {name, json(value).dump(-1, ' ', false, json::error_handler_t::replace)};
}
EventHub::Field EventHub::number(std::string_view name, std::int64_t value) {
  return {name, std::to_string(value)};
}

Event EventHub::event_of(std::string_view type, std::string_view session, uid_t owner,
                         const std::vector<Field>& fields) {
  Event event{std::string(type), std::string(session), owner, {}};
  event.data = "{\"type\":\"" + event.type + "\",\"session\":\"" + event.session + "\",\"at\":\"" +
               time_text(time_now()) + "\"";
  for (const auto& [name, value] : fields) event.data.append(",\"").append(name).append("\":").append(value);
  event.data += "}";
  return event;
}

void EventHub::publish(std::string_view type, std::string_view session, uid_t owner,
                       const std::vector<Field>& fields) {
  std::vector<std::shared_ptr<Listener>> hearing;
  {
    const MutexLock lock(mutex_);
    std::erase_if(listeners_, [](const auto& listener) { return listener.expired(); });
    if (listeners_.empty()) return;
    for (const auto& listener : listeners_)
      if (auto live = listener.lock()) hearing.push_back(std::move(live));
  }
  const Event event = event_of(type, session, owner, fields);
  for (const auto& listener : hearing) (*listener)(event);
}

bool EventHub::has_listeners() const {
  const MutexLock lock(mutex_);
  for (const auto& listener : listeners_)
    if (!listener.expired()) return true;
  return false;
}

std::shared_ptr<void> EventHub::listen(Listener listener) {
  auto handle = std::make_shared<Listener>(std::move(listener));
  const MutexLock lock(mutex_);
  listeners_.push_back(handle);
  return handle;
}

}  // namespace okcvm::daemon
