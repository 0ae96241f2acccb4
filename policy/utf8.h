#pragma once

#include <string_view>

namespace okcvm {

/// Whether bytes are UTF-8 text, which alone JSON can tell as it is (RFC 8259, 8.1).
bool is_utf8(std::string_view bytes);

}  // namespace okcvm
