#pragma once

#include <string>
#include <string_view>

namespace okcvm {

/// What stands in a URL for text or bytes: all but unreserved characters (RFC 3986, 2.3) as %NN; in a path,
/// "/" stays.
std::string percent_encoded(std::string_view component);
std::string percent_encoded_path(std::string_view path);

}  // namespace okcvm
