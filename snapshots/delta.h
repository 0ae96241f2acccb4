#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace okcvm::snapshots {

/// Bytes cut into the pieces that change as a whole; they stand one after the other in memory.
using Units = std::vector<std::string_view>;

/// A tree object's entries. None of bytes that are no tree.
Units tree_units(std::string_view tree);
/// The lines of a text, with their ends.
Units line_units(std::string_view text);
/// Pieces of 4 KiB, as databases write them.
Units block_units(std::string_view bytes);

/// The instructions that make `target` out of `base` ("deltified representation", gitformat-pack(5)). Takes
/// as long as both are large, times the logarithm of that.
std::string delta_between(const Units& base, const Units& target);

}  // namespace okcvm::snapshots
