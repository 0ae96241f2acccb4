#include "snapshots/pack_merge.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "policy/fault.h"
#include "snapshots/checksum.h"
#include "snapshots/disk.h"
#include "snapshots/io.h"
#include "snapshots/pack_deltas.h"
#include "snapshots/pack_writer.h"

namespace okcvm::snapshots {
namespace {

constexpr std::size_t kMaxPacks = 40;                 // each costs a search whenever an object is looked for
constexpr std::size_t kFewestMerged = kMaxPacks / 2;  // the others may be git's, or large
constexpr std::uint64_t kReadAhead = 1 << 20;
constexpr std::uint64_t kLargest = INT32_MAX;
constexpr std::size_t kTrailer = Oid::kSize;
constexpr std::size_t kIndexHead = 8 + 256 * 4;
constexpr const char* kDraft = "merged";
constexpr const char* kRecord = "merge";  // the names of the packs of a merge that is under way, a line each
constexpr std::size_t kNameSize = 5 + Oid::kHexSize;
constexpr std::size_t kLongestHead = 10 + Oid::kSize;  // of an entry

using Oids = std::unordered_set<Oid, OidHash>;
using Bases = std::unordered_map<Oid, std::size_t, OidHash>;  // of how many deltas each

struct Pack {
  std::string name;  // "pack-<40 digits>"
  std::uint64_t size = 0;
  timespec made{};
  Bases bases;  // once it was looked into
};

std::uint32_t be32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = at; i < at + 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// Packs that consist of a pack and an index and nothing else, smallest first. None while there are fewer.
std::vector<Pack> find_packs(int folder, std::size_t least) {
  std::vector<Pack> packs;
  auto rows = rows_in(folder);
  if (!rows || rows->size() < 2 * least) return packs;
  std::unordered_set<std::string> names;
  std::unordered_map<std::string, int> files;  // how many begin with that, before their first dot
  for (const auto& row : *rows) {
    names.insert(row.name);
    ++files[row.name.substr(0, row.name.find('.'))];
  }
  for (const auto& row : *rows) {
    if (!row.name.ends_with(".pack") || !row.name.starts_with("pack-")) continue;
    Pack pack{row.name.substr(0, row.name.size() - 5), 0, {}, {}};
    struct stat status {};
    if (files[pack.name] != 2 || !names.contains(pack.name + ".idx") ||
        ::fstatat(folder, row.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    pack.size = static_cast<std::uint64_t>(status.st_size);
    pack.made = status.st_mtim;
    packs.push_back(std::move(pack));
  }
  std::sort(packs.begin(), packs.end(), [](const Pack& a, const Pack& b) { return a.size < b.size; });
  return packs;
}

/// Where an object stands in a pack, as its index tells.
struct Row {
  Oid oid;
  std::uint64_t offset;
  std::uint32_t crc;
};

/// In the order of the pack; none of an index that is damaged, or has offsets past 2 GiB.
std::optional<std::vector<Row>> rows_of(int folder, const Pack& pack) {
  const auto index = read_file(folder, (pack.name + ".idx").c_str());
  if (!index || index->size() < kIndexHead + 2 * kTrailer || be32(*index, 0) != 0xff744f63 ||
      be32(*index, 4) != 2)
    return std::nullopt;
  const std::size_t count = be32(*index, kIndexHead - 4);
  if (index->size() != kIndexHead + count * 28 + 2 * kTrailer) return std::nullopt;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < count; ++i)
    rows.push_back({Oid::from_raw(index->data() + kIndexHead + i * Oid::kSize),
                    be32(*index, kIndexHead + count * 24 + i * 4),
                    be32(*index, kIndexHead + count * 20 + i * 4)});
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.offset < b.offset; });
  return rows;
}

/// Whether an entry can be copied as it stands: a delta of what stands so many bytes before it cannot.
bool is_ours(const PackEntryHead& head) {
  return head.kind || head.base;
}

FileDescriptor open_pack(int folder, const Pack& pack) {
  return FileDescriptor(::openat(folder, (pack.name + ".pack").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
}

/// What deltas in a pack are made of; none of a pack that git made, with its own deltas, or that cannot be
/// read.
std::optional<Bases> bases_in(int folder, const Pack& pack) {
  const auto rows = rows_of(folder, pack);
  const FileDescriptor file = open_pack(folder, pack);
  if (!rows || !file) return std::nullopt;
  Bases bases;
  std::array<char, 4096> piece{};  // with the heads of many small objects, or of one large one
  std::uint64_t from = 0;
  std::size_t size = 0;
  for (std::size_t i = 0; i < rows->size(); ++i) {
    const auto at = (*rows)[i].offset;
    if (at < from || at + kLongestHead > from + size) {
      from = at;
      size = read_at(file.get(), piece.data(), piece.size(), from).value_or(0);
    }
    const auto head =
        head_of(std::string_view(piece.data(), size).substr(std::min<std::size_t>(at - from, size)));
    if (head && !is_ours(*head)) return std::nullopt;
    if (head && head->base) ++bases[*head->base];
  }
  return bases;
}

/// The small ones of ours, oldest first: up to where the next is at least twice as large as all before it
/// together, or they would make one that is too large to be merged again (its index has other offsets).
/// Where that comes before there are enough, what is smaller stays out of it, and another run begins. The
/// others are not looked into, which takes as long as they are large.
std::vector<Pack> small_ones(int folder, const std::vector<Pack>& packs) {
  std::vector<Pack> small;
  std::uint64_t sum = 0;
  for (const Pack& pack : packs) {
    if (sum + pack.size > kLargest) break;
    if (small.size() >= 2 && pack.size >= 2 * sum) {
      if (small.size() >= kFewestMerged) break;
      small.clear();
      sum = 0;
    }
    sum += pack.size;
    small.push_back(pack);
  }
  std::erase_if(small, [folder](Pack& pack) {
    auto bases = bases_in(folder, pack);
    if (bases) pack.bases = std::move(*bases);
    return !bases;
  });
  std::sort(small.begin(), small.end(), [](const Pack& a, const Pack& b) {
    return std::tie(a.made.tv_sec, a.made.tv_nsec) < std::tie(b.made.tv_sec, b.made.tv_nsec);
  });
  return small;
}

/// Reads every object as it stands. `use` gets each with its head, null for one that is damaged (then all but
/// its name is void), and answers whether to go on. False: it did not, or this is not a pack of ours.
template <typename Use>
bool read_pack(int folder, const Pack& pack, const Use& use) {
  const auto rows = rows_of(folder, pack);
  const FileDescriptor file = open_pack(folder, pack);
  if (!rows || !file || pack.size < kTrailer) return false;
  std::string piece;  // of the pack, read ahead: most packs are small, and so are most of their objects
  std::uint64_t piece_from = 0;
  const auto fetch = [&](std::uint64_t from, std::uint64_t end) {
    if (end <= from || end > pack.size) return false;
    if (from >= piece_from && end <= piece_from + piece.size()) return true;
    piece_from = from;
    piece.resize(std::max<std::uint64_t>(end - from, std::min(kReadAhead, pack.size - from)));
    const auto got = read_at(file.get(), piece.data(), piece.size(), from);
    if (got && *got == piece.size()) return true;
    piece.clear();
    return false;
  };
  for (auto row = rows->begin(); row != rows->end(); ++row) {
    PackEntry entry;
    entry.oid = row->oid;
    entry.crc = row->crc;
    const std::uint64_t end = row + 1 != rows->end() ? (row + 1)->offset : pack.size - kTrailer;
    if (fetch(row->offset, end)) entry.bytes.assign(piece, row->offset - piece_from, end - row->offset);
    const auto head = head_of(entry.bytes);
    const bool is_whole = head && crc_number(entry.bytes) == entry.crc;
    if ((is_whole && !is_ours(*head)) || !use(entry, is_whole ? &*head : nullptr)) return false;
  }
  return true;
}

/// Copies packs into a new one, oldest first.
class Merger final {
 public:
  enum class End : std::uint8_t { kWhole, kUnreadable, kGivenUp };

  Merger(int folder, int incoming, const std::vector<Pack>& packs, const Progress& progress)
      : folder_(folder), progress_(progress), writer_(incoming, kDraft) {
    for (const auto& pack : packs) {
      total_ += pack.size;
      for (const auto& [oid, count] : pack.bases) bases_[oid] += count;
    }
  }

  /// Every object that is not there yet. What a delta is made of is in the same pack, or was copied from one
  /// before, which did not need this one for it.
  End copy(const Pack& pack) {
    End end = End::kWhole;
    const bool was_read = read_pack(folder_, pack, [&](const PackEntry& entry, const PackEntryHead* head) {
      if (!head) return false;
      if (progress_ && !progress_("packing", done_, total_)) end = End::kGivenUp;
      done_ += entry.bytes.size();
      const auto base = bases_.find(entry.oid);
      if (end == End::kWhole && copied_.insert(entry.oid).second &&
          !writer_.add(deltas_.shortened(entry, base == bases_.end() ? 0 : base->second)))
        end = End::kGivenUp;
      return end == End::kWhole;
    });
    return was_read || end != End::kWhole ? end : End::kUnreadable;
  }

  Result<Oid> finish() { return writer_.finish(); }

 private:
  int folder_;
  const Progress& progress_;
  PackWriter writer_;
  Bases bases_;
  Oids copied_;
  PackDeltas deltas_;
  std::uint64_t done_ = 0, total_ = 0;  // bytes
};

/// Merges those of `packs` that can be read, and leaves only them there. Answers the checksum; an error if
/// they are too few, or the merge was given up.
Result<Oid> merge(int folder, int incoming, std::vector<Pack>& packs, const Progress& progress) {
  while (packs.size() >= kFewestMerged) {
    Merger merger(folder, incoming, packs, progress);
    auto end = Merger::End::kWhole;
    auto pack = packs.begin();
    for (; pack != packs.end(); ++pack)
      if (end = merger.copy(*pack); end != Merger::End::kWhole) break;
    if (end == Merger::End::kWhole) return merger.finish();
    if (end == Merger::End::kGivenUp) break;
    packs.erase(pack);
  }
  return fail_errno(ECANCELED, "the packs are not merged");
}

/// What of a pack cannot be read: damaged objects and their deltas.
Oids lost_in(int folder, const Pack& pack) {
  Oids lost;
  std::vector<std::pair<Oid, Oid>> deltas;  // and what each is made of
  read_pack(folder, pack, [&](const PackEntry& entry, const PackEntryHead* head) {
    if (!head) lost.insert(entry.oid);
    if (head && head->base) deltas.emplace_back(entry.oid, *head->base);
    return true;
  });
  for (bool is_more = !lost.empty(); is_more;) {
    is_more = false;
    for (const auto& [oid, base] : deltas)
      if (lost.contains(base)) is_more |= lost.insert(oid).second;
  }
  return lost;
}

/// Git's index over several packs (git-multi-pack-index(1)) would name those that go, and so would the files
/// beside it; git does without.
void forget_index_of_several(int folder) {
  const auto rows = rows_in(folder);
  if (!rows) return;
  for (const auto& row : *rows)
    if (row.name.starts_with("multi-pack-index")) ::unlinkat(folder, row.name.c_str(), 0);
  ::unlinkat(folder, "multi-pack-index.d/multi-pack-index-chain", 0);
}

bool bring_in(int from, int folder, const std::string& name) {
  for (const char* ending : {".pack", ".idx"}) {
    fault_point("merge.rename");
    if (::renameat(from, (std::string(kDraft) + ending).c_str(), folder, (name + ending).c_str()) != 0)
      return false;
  }
  return ::fsync(folder) == 0;
}

}  // namespace

void set_damaged_packs_aside(Repository& repository) {
  const FileDescriptor folder(
      ::openat(repository.folder(), "objects/pack", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const FileDescriptor incoming(
      ::openat(repository.own_folder(), kIncoming, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || !incoming) return;
  for (const Pack& pack : find_packs(folder.get(), 0)) {
    const Oids lost = lost_in(folder.get(), pack);
    if (lost.empty()) continue;
    PackWriter writer(incoming.get(), kDraft);
    const bool was_read = read_pack(folder.get(), pack, [&](const PackEntry& entry, const PackEntryHead*) {
      return lost.contains(entry.oid) || writer.add(entry).has_value();
    });
    const auto rest = was_read && !writer.empty() ? writer.finish() : Result<Oid>(fail_errno(ENOENT));
    if (!was_read || (rest && !bring_in(incoming.get(), folder.get(), "pack-" + rest->hex()))) {
      for (const char* ending : {".pack", ".idx"})
        ::unlinkat(incoming.get(), (std::string(kDraft) + ending).c_str(), 0);
      continue;
    }
    forget_index_of_several(folder.get());
    for (const char* ending : {".idx", ".pack"})
      ::renameat(folder.get(), (pack.name + ending).c_str(), repository.own_folder(),
                 ("damaged-" + pack.name + ending).c_str());
  }
}

void merge_packs(Repository& repository, const Progress& progress) {
  const FileDescriptor folder(
      ::openat(repository.folder(), "objects/pack", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return;
  const auto all = find_packs(folder.get(), kMaxPacks);
  if (all.size() < kMaxPacks) return;
  auto packs = small_ones(folder.get(), all);
  const FileDescriptor incoming(
      ::openat(repository.own_folder(), kIncoming, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!incoming) return;
  const auto checksum = merge(folder.get(), incoming.get(), packs, progress);
  const std::string merged = checksum ? "pack-" + checksum->hex() : std::string();
  std::string record = merged + '\n';
  for (const auto& pack : packs) record += pack.name + '\n';
  if (!checksum || !replace_file(repository.own_folder(), kRecord, record, Durability::kNow) ||
      !bring_in(incoming.get(), folder.get(), merged)) {
    for (const char* ending : {".pack", ".idx"})
      ::unlinkat(incoming.get(), (std::string(kDraft) + ending).c_str(), 0);
    clean_up_merge(repository);
    return;
  }
  forget_index_of_several(folder.get());
  for (const auto& pack : packs) {
    if (pack.name == merged) continue;
    // The index first: git looks for indexes, and an index without its pack would be an error.
    for (const char* ending : {".idx", ".pack"}) {
      fault_point("merge.remove");
      ::unlinkat(folder.get(), (pack.name + ending).c_str(), 0);
    }
  }
  ::unlinkat(repository.own_folder(), kRecord, 0);
  static_cast<void>(repository.reopen());
}

void clean_up_merge(const Repository& repository) {
  const auto record = read_file(repository.own_folder(), kRecord);
  if (!record) return;
  for (std::size_t start = 0; start + kNameSize < record->size(); start += kNameSize + 1) {
    const std::string name = record->substr(start, kNameSize);
    if (!name.starts_with("pack-") || !Oid::parse(name.substr(5))) break;
    const std::string path = "objects/pack/" + name;
    struct stat status {};
    if (::fstatat(repository.folder(), (path + ".idx").c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) continue;
    if (errno == ENOENT) ::unlinkat(repository.folder(), (path + ".pack").c_str(), 0);
  }
  ::unlinkat(repository.own_folder(), kRecord, 0);
}

}  // namespace okcvm::snapshots
