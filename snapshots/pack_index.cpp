#include "snapshots/pack_index.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <vector>

#include "policy/file_descriptor.h"
#include "snapshots/checksum.h"
#include "snapshots/disk.h"
#include "snapshots/io.h"
#include "snapshots/repository.h"

namespace okcvm::snapshots {
namespace {

constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

// gitformat-pack(5), version 2: a head, a table of 256 counts, of each object 20 bytes of name, 4 of checksum
// and 4 of offset, then the offsets that are longer, and two checksums.
constexpr std::uint32_t kMagic = 0xff744f63;
constexpr std::uint64_t kHead = 8, kTable = 256 * 4, kNameAndChecksum = 24, kOffset = 4, kLongOffset = 8;
constexpr std::uint64_t kTrailer = 20;
constexpr std::uint32_t kIsLong = 0x80000000;

std::uint64_t size_of(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

/// Numbers as they stand at a place of the file; fewer where it ends.
std::vector<std::uint32_t> numbers_at(int file, std::uint64_t place, std::uint64_t count) {
  std::vector<std::uint32_t> numbers(std::min(count, size_of(file) / sizeof(std::uint32_t)));
  const auto got =
      read_at(file, reinterpret_cast<char*>(numbers.data()), numbers.size() * sizeof(std::uint32_t), place);
  numbers.resize(got.value_or(0) / sizeof(std::uint32_t));
  for (auto& number : numbers) number = ntohl(number);
  return numbers;
}

/// Whether an index names the pack's checksum: libgit2 refuses a pack of another one.
bool is_of_pack(int index, int pack) {
  std::array<char, kTrailer> named{}, there{};
  const auto index_size = size_of(index), pack_size = size_of(pack);
  return index_size >= 2 * kTrailer && pack_size >= kTrailer &&
         read_at(index, named.data(), kTrailer, index_size - 2 * kTrailer) == kTrailer &&
         read_at(pack, there.data(), kTrailer, pack_size - kTrailer) == kTrailer && named == there;
}

/// Of an index that libgit2 would take; others it refuses.
bool leads_out(int index, std::uint64_t pack_size) {
  const auto is_outside = [&](std::uint64_t offset) { return offset + kTrailer > pack_size; };
  const auto head = numbers_at(index, 0, kHead / sizeof(std::uint32_t));
  if (head.size() < 2) return false;
  if (head[0] != kMagic) {  // version 1: the table, of each object the offset and the name, two checksums
    const auto all = numbers_at(index, kTable, size_of(index));
    for (std::size_t at = 0; at + 10 < all.size(); at += 6)
      if (is_outside(all[at])) return true;
    return false;
  }
  const auto counts = numbers_at(index, kHead, 256);
  if (head[1] != 2 || counts.size() < 256) return false;
  const std::uint64_t start = kHead + kTable + counts.back() * kNameAndChecksum;
  const auto offsets = numbers_at(index, start, counts.back());
  const std::uint64_t long_start = start + counts.back() * kOffset;
  const std::uint64_t size = std::max(size_of(index), long_start);
  const auto longer = numbers_at(index, long_start, (size - long_start) / sizeof(std::uint32_t));
  return std::any_of(offsets.begin(), offsets.end(), [&](std::uint32_t offset) {
    if (!(offset & kIsLong)) return is_outside(offset);
    const std::uint64_t at = std::uint64_t{offset & ~kIsLong} * kLongOffset / sizeof(std::uint32_t);
    if (at + 1 >= longer.size()) return false;  // refused
    return longer[at] >> 31 || is_outside(std::uint64_t{longer[at]} << 32 | longer[at + 1]);
  });
}

}  // namespace

bool set_unsound_indexes_aside(int repository, const std::set<std::string>& known) {
  constexpr std::string_view kPack = ".pack", kIndex = ".idx";
  const FileDescriptor folder(
      ::openat(repository, "objects/pack", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  const auto rows = folder ? rows_in(folder.get()) : Result<std::vector<DiskRow>>();
  if (!rows) return true;  // there is nothing to read then
  bool are_sound = true;
  for (const auto& row : *rows) {
    if (!row.name.ends_with(kPack) || known.contains(row.name)) continue;
    const auto name = row.name.substr(0, row.name.size() - kPack.size()) + std::string(kIndex);
    const FileDescriptor pack(::openat(folder.get(), row.name.c_str(), kFlags));
    const FileDescriptor index(::openat(folder.get(), name.c_str(), kFlags));
    if (!pack || !index || !is_of_pack(index.get(), pack.get()) ||
        !leads_out(index.get(), size_of(pack.get())))
      continue;
    const auto aside = std::string(kOwnFolder) + "/damaged-" + name;
    are_sound &= ::renameat(folder.get(), name.c_str(), repository, aside.c_str()) == 0;
  }
  return are_sound;
}

bool is_damaged_index(int repository, const std::string& path) {
  const FileDescriptor index(::openat(repository, path.c_str(), kFlags));
  const auto size = index ? size_of(index.get()) : 0;
  if (size < kTrailer) return true;
  Checksum checksum;
  std::string piece(64 << 10, '\0');
  for (std::uint64_t at = 0; at < size - kTrailer; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), size - kTrailer - at));
    if (read_at(index.get(), piece.data(), piece.size(), at) != piece.size()) return true;
    checksum.add(piece);
  }
  std::array<char, kTrailer> named{};
  return read_at(index.get(), named.data(), kTrailer, size - kTrailer) != kTrailer ||
         checksum.finish() != Oid::from_raw(named.data());
}

}  // namespace okcvm::snapshots
