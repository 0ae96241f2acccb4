#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "fusefs/session_state.h"

// What SessionState keeps in its shared mapping, as the next daemon finds it: with another layout it needs
// another kMagic.

namespace okcvm::fusefs {

constexpr std::size_t kOpcodes = 56;
constexpr std::size_t kErrnos = 140;
constexpr std::size_t kMaxFiles = 1u << 20;

struct OpcodeCounter {
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> nanoseconds;
  std::array<std::atomic<std::uint64_t>, 24> latency;
};

struct ChangeRecord {
  std::atomic<std::uint64_t> unique;  // 0 while free; stored last
  Fact fact;
  std::atomic<std::uint32_t> references;
  std::atomic<std::uint64_t> first_reference;  // the others have a place of their own
};

struct FileRecord {
  std::atomic<std::uint64_t> id;  // 0 while free; stored last
  std::uint64_t node;
  std::uint64_t unique;  // of the request that opened it, or that was told of the error
  std::uint32_t generation;
  std::uint32_t flags : 24;  // open(2)'s
  std::uint32_t sync_error : 7;
  std::uint32_t is_told : 1;
};
static_assert(sizeof(FileRecord) == 32);

struct StateHeader {
  std::uint64_t magic;
  std::uint32_t init_size;
  std::uint32_t protocol_minor;
  std::uint32_t passthrough;
  std::uint32_t resend;
  std::array<std::byte, SessionState::kMaxInit> init;
  std::atomic<std::uint64_t> denials;
  std::array<ChangeRecord, SessionState::kChanges> changes;
  std::array<std::atomic<std::uint64_t>, kErrnos> errors;
  std::array<OpcodeCounter, kOpcodes> counters;
  std::uint32_t next_file;
  std::atomic<std::uint32_t> untold;
  std::atomic<std::int32_t> last_backing;
  std::atomic<std::int32_t> closing_backing;
  std::atomic<std::uint32_t> has_lost_names;  // that go: there was no room to note them
};

constexpr std::size_t kFilesOffset = 16 * 1024;
static_assert(sizeof(StateHeader) <= kFilesOffset);
constexpr std::size_t kReferencesOffset = kFilesOffset + kMaxFiles * sizeof(FileRecord);
constexpr std::size_t kReferencesSize = (SessionState::kReferences - 1) * sizeof(std::uint64_t);
constexpr std::size_t kRegionSize = kReferencesOffset + SessionState::kChanges * kReferencesSize;

inline FileRecord& file_record(const SharedRegion& region, std::uint32_t slot) {
  return reinterpret_cast<FileRecord*>(region.data() + kFilesOffset)[slot];
}

}  // namespace okcvm::fusefs
