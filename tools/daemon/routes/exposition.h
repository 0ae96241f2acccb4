#pragma once

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "tools/daemon/sessions/work_metrics.h"

namespace okcvm::daemon {

/// Writes metrics in Prometheus text form (version 0.0.4). Values of labels are written as they are: none of
/// ours needs escaping. Not thread-safe.
class Exposition final {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  /// Begins a metric; its samples follow.
  void metric(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::uint64_t value, Labels labels = {}, std::string_view suffix = {});
  void sample(double value, Labels labels = {}, std::string_view suffix = {});
  void times(const TimeHistogram& times, Labels labels = {});

  /// A metric of one sample.
  void gauge(std::string_view name, std::uint64_t value, std::string_view help);
  void counter(std::string_view name, std::uint64_t value, std::string_view help);

  std::string text() const { return out_.str(); }

 private:
  void name_of_sample(Labels labels, std::string_view suffix, std::string_view bound = {});
  std::ostringstream out_;
  std::string name_;
};

/// "0.001", "60": as short as it reads back.
std::string number_text(double value);

}  // namespace okcvm::daemon
