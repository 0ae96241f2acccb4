#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tools/cli/outcome.h"

namespace okcvm::cli {

/// Takes a text/event-stream apart (WHATWG HTML, section 9.2.6) and gives on the data of each event.
/// Comments, ids and names are dropped: the data names its type itself.
class EventStream {
 public:
  explicit EventStream(std::function<Outcome<void>(const std::string& data)> on_data)
      : on_data_(std::move(on_data)) {}

  Outcome<void> take(std::string_view piece) {
    pending_ += piece;
    for (auto end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
      std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      if (auto taken = take_line(line); !taken) return taken;
    }
    return {};
  }

 private:
  Outcome<void> take_line(const std::string& line) {
    if (line.starts_with("data:")) {
      if (has_data_) data_ += '\n';
      has_data_ = true;
      data_ += line.substr(line.starts_with("data: ") ? 6 : 5);
      return {};
    }
    if (!line.empty() || !has_data_) return {};
    has_data_ = false;
    return on_data_(std::exchange(data_, {}));
  }

  std::function<Outcome<void>(const std::string& data)> on_data_;
  std::string pending_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace okcvm::cli
