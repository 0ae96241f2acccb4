#pragma once

#include <functional>
#include <vector>

#include "policy/error.h"
#include "snapshots/compare.h"
#include "snapshots/store.h"

namespace okcvm::snapshots {

/// Reads the bytes of a file or link of one side, for a text diff. Nothing: not to be had, not to be read, or
/// too large.
using ReadText = std::function<Result<std::optional<std::string>>(const RelPath& path, const Node& node)>;

/// Files larger than this have no text diff; bytes.
inline constexpr std::uint64_t kMaxText = 1 << 20;
/// Nor have files in which more lines than these differ, of both sides together: what that takes grows faster
/// than their number (a second here).
inline constexpr std::size_t kMostLines = 300'000;
/// Once the text diffs of one answer have so many bytes together, of further files only is said that they
/// differ: all is held in memory.
inline constexpr std::uint64_t kMaxTextOfAll = 16 << 20;

/// The same of what is said of those.
inline constexpr std::uint64_t kMaxNotesOfAll = 1 << 20;

/// Of both sides, and who is asked before each text diff whether to go on.
struct Texts {
  ReadText before, after;
  Progress progress;
};

/// Deltas as rows for people, sorted by path: renames found (the same content, and not empty); left out are
/// times of a directory where entries in it came or went, and empty zones that one side does not know. With
/// `texts`, with text diffs; `busy` when it was told to stop.
Result<std::vector<Difference>> to_differences(const std::vector<Delta>& deltas,
                                               const Texts* texts = nullptr);

/// The bytes of a file or link, and its mode with the type bits.
struct FileText {
  std::string bytes;
  mode_t mode = 0;
};
/// What `git diff` prints of a file that was added, removed or changed, for `git apply`; empty if there is
/// nothing to tell. Of bytes that are no UTF-8 text, when `binary` is set, it is patch_without_text().
std::string patch_text(const std::string& path, const std::optional<FileText>& before,
                       const std::optional<FileText>& after, bool& binary);
/// Says that there is a difference, so that `git apply` refuses rather than leave it out.
std::string patch_without_text(const std::string& path, const std::optional<FileText>& before,
                               const std::optional<FileText>& after);
/// The same of one that has another name, and perhaps another mode.
std::string rename_text(const std::string& old_path, const std::string& new_path, mode_t old_mode,
                        mode_t new_mode);

}  // namespace okcvm::snapshots
