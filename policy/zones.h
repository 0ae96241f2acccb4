#pragma once

#include <array>
#include <cerrno>
#include <cstdint>
#include <string_view>

namespace okcvm {

/// A top-level part of a session and what may be done in it (DESIGN section 2).
enum class Zone : std::uint8_t { kRoot, kSkills, kUploads, kOutputs, kTemp, kWorkdir };

struct ZoneRule {
  Zone zone;
  std::string_view name;  // directory below the session root; empty for the root itself
  int write_error;        // errno of every change; 0 where changes are allowed
  int link_out_error;     // errno of a hard link from here into another zone; 0 where it is allowed
  bool snapshotted;
  bool emptied_by_reset;
  bool changes_underneath;  // the host may change it too: short cache times, nothing taken on trust
  int group;                // renames and links work between zones of one group, and are EXDEV between groups
};

inline constexpr std::array kZoneRules{
    ZoneRule{Zone::kRoot, "", EROFS, EROFS, false, false, false, 0},
    ZoneRule{Zone::kSkills, "skills", EROFS, EXDEV, false, false, true, 1},
    ZoneRule{Zone::kUploads, "uploads", 0, 0, true, false, false, 2},
    ZoneRule{Zone::kOutputs, "outputs", 0, 0, true, false, false, 2},
    ZoneRule{Zone::kTemp, "temp", 0, 0, true, true, false, 2},
    ZoneRule{Zone::kWorkdir, "workdir", 0, EXDEV, false, false, true, 3},
};

constexpr const ZoneRule& rule_of(Zone zone) {
  return kZoneRules[static_cast<std::size_t>(zone)];
}

/// The zone that a top-level name stands for; kRoot for any other name.
constexpr Zone zone_named(std::string_view name) {
  for (const auto& rule : kZoneRules)
    if (rule.name == name) return rule.zone;
  return Zone::kRoot;
}

/// The errno that forbids a rename from one zone to another; 0 where it may be tried.
constexpr int rename_error(Zone from, Zone to) {
  if (int error = rule_of(from).write_error) return error;
  if (int error = rule_of(to).write_error) return error;
  return rule_of(from).group == rule_of(to).group ? 0 : EXDEV;
}

/// The errno that forbids a hard link of a file in `from` at a name in `to`; 0 where it may be tried.
constexpr int link_error(Zone from, Zone to) {
  if (int error = rule_of(to).write_error) return error;
  if (from != to && rule_of(from).link_out_error) return rule_of(from).link_out_error;
  return rule_of(from).group == rule_of(to).group ? 0 : EXDEV;
}

/// Of a zone's own directory before the first change of it: these bits, the session's owner, no xattrs.
inline constexpr std::uint32_t kZoneMode = 0755;

inline constexpr std::string_view kMetadataFile = ".metadata.json";

}  // namespace okcvm
