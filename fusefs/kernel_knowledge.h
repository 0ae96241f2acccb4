#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "fusefs/types.h"

namespace okcvm::fusefs {

/// Whose request the calling thread carries out, and since when: how many changes there had been by then.
struct Asking {
  std::int32_t thread = 0;  // of the program; 0: unknown
  std::uint64_t changes = 0;

  static Asking& current();
  /// To be called before anything is looked at for the request.
  static void begin(std::int32_t thread);
};

/// What the kernel was told of inodes, by their slot in the node table, and of directories' listings. It may
/// have forgotten: then the kernel counts as not having it, but somebody as having been told. Not
/// thread-safe.
class KernelKnowledge {
 public:
  /// It has its attributes, or may have.
  void set_attributes(std::uint32_t slot);
  void forget_attributes(std::uint32_t slot);
  bool has_attributes(std::uint32_t slot) const { return slot < attributes_.size() && attributes_[slot]; }
  /// A listing comes to the name of an inode that the kernel knows. Answers whether its attributes may be
  /// left out: it has them, or who lists directories lately did not ask for those that were left out.
  bool may_leave_out(std::uint32_t slot);

  /// It is given these attributes in answer to the current request. Answers false if they may be older than a
  /// change that came after the request: then the kernel must not keep them.
  bool tell(std::uint32_t slot);
  /// An inode was changed in a way after which the kernel drops its attributes, and that is to be answered
  /// now. Answers true if it must be told that what it asked for before is outdated: another thread of a
  /// program may still have an answer to take up, and would have the kernel keep that as if it were new
  /// (Linux 6.18).
  bool changed(std::uint32_t slot);
  /// The slot is a new inode's, of which the kernel never heard.
  void is_new(std::uint32_t slot);

  /// It was given so many names of a directory, and may keep them; with none it has all.
  void listed(NodeId directory, bool from_start, std::uint32_t names);
  /// It will ask for the attributes of this file of this directory, should a program want them. Answers true
  /// once that is so for so many that giving the listing anew, attributes included, costs less than asking
  /// for each; but not again until some program asked for what was left out.
  bool should_list_again(NodeId directory, std::uint32_t slot);
  /// The directories that are to be listed again since a program asks, as the last tell() found; none most
  /// of the time.
  std::vector<NodeId> to_list_again();

  void forget(NodeId directory) { listings_.erase(directory.value); }
  void forget_all();

 private:
  static constexpr std::int32_t kUnknown = 0;
  static constexpr std::int32_t kNobody = -1;
  static constexpr std::int32_t kSeveral = -2;
  struct Telling {
    std::int32_t to = kUnknown;    // the thread of a program that was told since the last change
    std::uint64_t changed_at = 0;  // as Asking::changes counts
  };
  struct Listing {
    std::uint32_t names = 0;
    std::uint32_t outdated = 0;
    bool complete = false;
    std::uint64_t given_anew_at = 0;  // as asked_ counts; 0: never

    bool is_outdated() const;
  };
  Telling& telling(std::uint32_t slot);
  std::vector<bool> attributes_;
  std::vector<bool> left_out_;       // by the last listing, or outdated, and not asked for since
  std::uint32_t names_to_give_ = 0;  // with attributes, before some are left out again
  std::uint64_t asked_ = 1;          // so often, for what was left out
  bool are_declined_ = false;        // listings are outdated that nobody wanted
  bool is_asked_again_ = false;      // and now somebody does
  std::vector<Telling> tellings_;
  std::unordered_map<std::uint64_t, Listing> listings_;  // by directory
};

}  // namespace okcvm::fusefs
