#include "tests/differential/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/differential/calls.h"
#include "tests/support/file_io.h"

namespace okcvm::differential {
namespace {

Outcome map(Side& side, const Operation& operation) {
  const auto size = side.mappable(operation.slot);
  if (size == 0) return {};
  auto& mapping = side.mapping(operation.mapping);
  mapping = Mapping(side.slot(operation.slot).get(), static_cast<std::size_t>(size));
  return mapping.is_there() ? Outcome{} : Outcome{-1, errno, {}};
}

Outcome store(Side& side, const Operation& operation) {
  auto& mapping = side.mapping(operation.mapping);
  if (!mapping.is_there()) return {};
  const auto bytes = test::pattern(static_cast<std::size_t>(operation.length), operation.seed);
  auto outcome =
      outcome_of(mapping.store(static_cast<std::size_t>(operation.offset) % mapping.size(), bytes));
  outcome.data = describe_status(mapping.status());
  return outcome;
}

Outcome load(Side& side, const Operation& operation) {
  const auto& mapping = side.mapping(operation.mapping);
  return mapping.is_there() ? Outcome{0, 0, mapping.load()} : Outcome{};
}

Outcome unmap(Side& side, const Operation& operation) {
  side.mapping(operation.mapping).unmap();
  return {};
}

}  // namespace

Mapping::Mapping(int file, std::size_t size)
    : file_(::open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_PATH | O_CLOEXEC)) {
  void* const memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return;
  memory_ = static_cast<std::byte*>(memory);
  size_ = size;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  unmap();
  file_ = std::move(other.file_);
  memory_ = std::exchange(other.memory_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

struct stat Mapping::status() const {
  struct stat found {};
  ::fstat(file_.get(), &found);
  return found;
}

std::size_t Mapping::usable() const {
  return std::min(size_, static_cast<std::size_t>(status().st_size));
}

long Mapping::store(std::size_t at, std::string_view bytes) {
  const std::size_t end = usable();
  if (at >= end) return 0;
  bytes = bytes.substr(0, end - at);
  std::memcpy(memory_ + at, bytes.data(), bytes.size());
  // Written back at once: munmap(2) would hold a lock meanwhile that a driver in this process needs.
  return ::msync(memory_, size_, MS_SYNC) == 0 ? static_cast<long>(bytes.size()) : -1;
}

std::string Mapping::load() const {
  return {reinterpret_cast<const char*>(memory_), usable()};
}

void Mapping::unmap() {
  if (memory_) ::munmap(memory_, size_);
  memory_ = nullptr;
}

Call mapping_call(Kind kind) {
  switch (kind) {
    case Kind::kMap:
      return map;
    case Kind::kMapStore:
      return store;
    case Kind::kMapLoad:
      return load;
    case Kind::kUnmap:
      return unmap;
    default:
      return nullptr;
  }
}

}  // namespace okcvm::differential
