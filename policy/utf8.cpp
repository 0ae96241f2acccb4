#include "policy/utf8.h"

#include <nlohmann/json.hpp>

namespace okcvm {

bool is_utf8(std::string_view bytes) {
  // The serialiser decides by the same rule that it writes by.
  try {
    static_cast<void>(nlohmann::json(bytes).dump());
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace okcvm
