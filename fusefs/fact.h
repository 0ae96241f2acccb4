#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>

namespace okcvm::fusefs {

/// What a change notes of itself, for the next daemon should this one die before the answer: by that the
/// change can tell, when the kernel sends it again, whether it was carried out. One word, so that a kill
/// leaves the whole of it or what was noted before; take-overs read those of older daemons. Which kind it is,
/// the operation knows that noted it.
class Fact final {
 public:
  /// The kernel keeps nothing of the change, or forgets by itself where it gets no answer.
  constexpr Fact() = default;
  /// It is simply made again, but the kernel must hear of it where nobody asks again.
  static constexpr Fact repeatable() { return Fact(kNoInode); }
  /// A name of this inode comes or goes.
  static constexpr Fact inode(std::uint64_t inode) { return Fact(inode); }
  /// As that, and another inode, which is not told, goes the other way.
  static constexpr Fact exchange(std::uint64_t inode) { return Fact(inode | kExchange); }
  /// An inode is to be made, from this time on.
  static constexpr Fact making_since(const timespec& time) { return Fact(nanoseconds(time)); }
  /// This inode was made.
  static constexpr Fact made(std::uint64_t inode) { return Fact(inode | kMade); }
  /// Bytes are to be appended, to so many (the size of the file).
  static constexpr Fact appending_to(off_t size) { return Fact(static_cast<std::uint64_t>(size) + 1); }
  /// An extended attribute is to be made or removed: whether it was there before.
  static constexpr Fact attribute(bool was_there) { return Fact(kNoInode | (was_there ? 2 : 1)); }

  constexpr explicit operator bool() const { return word_ != 0; }
  friend constexpr bool operator==(const Fact&, const Fact&) = default;

  /// inode(), or exchange(): no other fact is an inode's number.
  constexpr std::uint64_t inode_number() const { return word_ & ~kExchange; }
  constexpr bool is_exchange() const { return word_ & kExchange; }
  constexpr bool is_made() const { return word_ & kMade; }
  /// Of one that says when it began.
  constexpr bool began_by(const timespec& time) const { return word_ <= nanoseconds(time); }
  /// Of one that appends.
  constexpr off_t old_size() const { return static_cast<off_t>(word_ - 1); }

 private:
  static constexpr std::uint64_t kMade = std::uint64_t{1} << 63;
  static constexpr std::uint64_t kNoInode = std::uint64_t{1} << 62;
  static constexpr std::uint64_t kExchange = std::uint64_t{1} << 61;

  static constexpr std::uint64_t nanoseconds(const timespec& time) {
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
  }
  explicit constexpr Fact(std::uint64_t word) : word_(word) {}

  std::uint64_t word_ = 0;
};
static_assert(sizeof(Fact) == sizeof(std::uint64_t));

}  // namespace okcvm::fusefs
