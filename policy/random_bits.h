#pragma once

#include <cstdint>
#include <string>

namespace okcvm {

/// That nobody can foretell. A std::random_device (5 KB) is made for each: kept for each thread it would take
/// a session's thread more memory than its stack does.
std::uint64_t random_bits();

/// 16 lower-case hex digits made of them.
std::string random_name();

}  // namespace okcvm
