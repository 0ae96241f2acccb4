#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/rel_path.h"

namespace okcvm {

/// What happened to a path since the last cut.
enum class ChangeKind : std::uint8_t {
  kEntry,       // the name was created, removed or replaced: look again at what is there, if anything
  kContent,     // a file that stood there may have other bytes (and attributes)
  kAttributes,  // mode, owner, times or xattrs only; the bytes are what they were
  kTree,        // a directory made since the cut: read it whole; nothing below it is listed one by one
  kMoved,       // what stood at `path` stands at `target` now, with whatever was recorded for it or below it;
                // if that was refused, kTree of both follows
};

/// One step. Paths are as they were at that moment, so steps must be replayed in order: a kContent of "a/x"
/// followed by a kMoved of "a" to "b" means that "b/x" is to be read.
struct Change {
  ChangeKind kind;
  RelPath path;
  RelPath target;  // of kMoved only

  friend bool operator==(const Change&, const Change&) = default;
};

/// Everything that may differ in the writable zones between two cuts. A superset of the truth, never less. Of
/// a changed file with several names (hard links) at least one is named: whoever replays knows the others.
struct ChangeSet {
  /// The record has a gap (unclean host stop, a change that could not be named): compare everything by stat.
  bool rescan = false;
  std::string rescan_reason;
  std::vector<Change> changes;
  /// Files open for writing at the moment of the cut. They are among `changes`, and stay dirty for the next
  /// cut.
  std::vector<RelPath> in_flight;
  /// Position in the record up to which this set reaches; given back when it is retired.
  std::uint64_t end = 0;
  /// Which gap `rescan` is about, 0 for none: a later one has another number. What is changed after a cut is
  /// recorded although the record has a gap, so that only a new gap asks for another comparison.
  std::uint64_t lost_at = 0;
  /// The state that all this is counted from, by the name it was given; empty: nobody said.
  std::string counts_from = {};
  /// A time before the cut, in nanoseconds since the epoch: what changed later may be in the next set. By
  /// whoever asked for the cut; 0: not told.
  std::int64_t cut_after_ns = 0;

  bool empty() const { return !rescan && changes.empty(); }
};

}  // namespace okcvm
