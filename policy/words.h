#pragma once

#include <algorithm>
#include <string_view>

namespace okcvm {

/// Takes the text before the first space off a line, and the space; all of it where there is none.
inline std::string_view take_word(std::string_view& line) {
  const auto end = std::min(line.find(' '), line.size());
  const auto word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

}  // namespace okcvm
