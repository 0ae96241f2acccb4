#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "snapshots/oid.h"

namespace okcvm::snapshots {

/// The SHA-1 that ends a pack and its index (gitformat-pack(5)). A checksum of files that we wrote ourselves:
/// object names, which an attacker may try to collide, are always computed by libgit2, which detects that.
class Checksum final {
 public:
  Checksum();
  ~Checksum();
  void add(std::string_view bytes);
  Oid finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The CRC-32 of a text.
std::uint32_t crc_number(std::string_view text);
/// The same in decimal: what our own logs say of their lines.
std::string crc_of(std::string_view text);

}  // namespace okcvm::snapshots
