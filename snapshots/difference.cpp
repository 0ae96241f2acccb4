#include "snapshots/difference.h"

#include <sys/stat.h>

#include <string_view>
#include <tuple>
#include <unordered_map>

#include "policy/zones.h"
#include "snapshots/io.h"

namespace okcvm::snapshots {
namespace {

std::optional<std::uint64_t> size_of(const Node& node) {
  return node.is_directory() ? std::nullopt : std::optional(node.size);
}

std::string_view leaf_of(const Delta& delta) {
  return std::string_view(delta.path).substr(delta.path.rfind('/') + 1);
}

/// Files of the same bytes that went, the last path first: all of them, and by name. Each is taken once.
struct Gone {
  std::vector<const Delta*> all;
  std::unordered_map<std::string_view, std::vector<const Delta*>> named;
};

/// A file that went and one that came with the same bytes are one that was renamed.
std::unordered_map<const Delta*, const Delta*> find_renames(const std::vector<Delta>& deltas) {
  std::unordered_map<Oid, Gone, OidHash> gone;
  const auto is_file = [](const Node* node) {
    return node && node->type == NodeType::kFile && node->size > 0;
  };
  for (auto delta = deltas.rbegin(); delta != deltas.rend(); ++delta) {
    if (delta->after || !is_file(delta->before)) continue;
    auto& sources = gone[delta->before->content];
    sources.all.push_back(&*delta);
    sources.named[leaf_of(*delta)].push_back(&*delta);
  }
  std::unordered_map<const Delta*, const Delta*> renames;  // both ways
  const auto take_first = [&renames](std::vector<const Delta*>& sources) -> const Delta* {
    while (!sources.empty()) {
      const Delta* source = sources.back();
      sources.pop_back();
      if (!renames.contains(source)) return source;
    }
    return nullptr;
  };
  for (const auto& delta : deltas) {
    if (delta.before || !is_file(delta.after)) continue;
    const auto found = gone.find(delta.after->content);
    if (found == gone.end()) continue;
    // Among several one of the same name, else the first.
    const auto namesake = found->second.named.find(leaf_of(delta));
    const Delta* source = namesake == found->second.named.end() ? nullptr : take_first(namesake->second);
    if (!source) source = take_first(found->second.all);
    if (!source) continue;
    renames.emplace(&delta, source);
    renames.emplace(source, &delta);
  }
  return renames;
}

/// Programs see a zone whether it was made on disk or not, and a restore leaves it there.
bool is_bare_zone(const Delta& delta) {
  const Node* const only = delta.before ? delta.before : delta.after;
  return !(delta.before && delta.after) && only->is_directory() && only->children.empty() &&
         delta.path.find('/') == std::string::npos && only->attributes.mode == kZoneMode &&
         only->attributes.xattrs.empty();
}

/// With `has_room` false only that there is a difference.
Result<void> add_text(const Delta& delta, const Texts& texts, bool has_room, Difference& row) {
  const auto file_of = [](const Node* node) { return node && !node->is_directory() ? node : nullptr; };
  const Node* const old_file = file_of(delta.before);
  const Node* const new_file = file_of(delta.after);
  if (!old_file && !new_file) return {};
  const bool is_same =
      old_file && new_file && old_file->type == new_file->type && old_file->content == new_file->content;
  std::optional<FileText> old_text, new_text;
  bool fits = has_room || is_same;
  for (const auto& [file, read, text] :
       {std::tuple(old_file, &texts.before, &old_text), std::tuple(new_file, &texts.after, &new_text)}) {
    if (!file) continue;
    text->emplace(FileText{{}, full_mode(*file)});
    if (is_same) continue;
    if (!fits || file->size > kMaxText) {
      fits = false;
      continue;
    }
    auto bytes = (*read)(row.path, *file);
    if (!bytes) return fail(bytes.error());
    if (!*bytes) return {};
    (*text)->bytes = std::move(**bytes);
  }
  row.unified = fits ? patch_text(delta.path, old_text, new_text, row.binary)
                     : patch_without_text(delta.path, old_text, new_text);
  return {};
}

}  // namespace

Result<std::vector<Difference>> to_differences(const std::vector<Delta>& deltas, const Texts* texts) {
  const auto renames = find_renames(deltas);
  std::vector<Difference> rows;
  std::uint64_t text_bytes = 0;
  for (const auto& delta : deltas) {
    if (delta.times_only || is_bare_zone(delta)) continue;
    const auto rename = renames.find(&delta);
    if (rename != renames.end() && !delta.after) continue;  // told with the name that it has now
    auto path = RelPath::parse(delta.path);
    if (!path) return fail(path.error());
    Difference row{};
    row.path = std::move(*path);
    const Node* old_node = delta.before;
    if (rename != renames.end()) {
      row.kind = DifferenceKind::kRenamed;
      auto from = RelPath::parse(rename->second->path);
      if (!from) return fail(from.error());
      row.renamed_from = std::move(*from);
      old_node = rename->second->before;
    } else {
      row.kind = !delta.before  ? DifferenceKind::kAdded
                 : !delta.after ? DifferenceKind::kRemoved
                 : delta.content && (delta.before->type != delta.after->type ||
                                     delta.before->content != delta.after->content)
                     ? DifferenceKind::kChanged
                     : DifferenceKind::kMetadata;
    }
    if (old_node) {
      row.old_mode = full_mode(*old_node);
      row.old_size = size_of(*old_node);
    }
    if (delta.after) {
      row.new_mode = full_mode(*delta.after);
      row.new_size = size_of(*delta.after);
    }
    if (texts && text_bytes < kMaxTextOfAll + kMaxNotesOfAll) {
      const auto done = static_cast<std::uint64_t>(&delta - deltas.data());
      if (texts->progress && !texts->progress("comparing", done, deltas.size())) return stopped();
      if (row.renamed_from)
        row.unified = rename_text(row.renamed_from->text(), delta.path, *row.old_mode, *row.new_mode);
      else if (auto added = add_text(delta, *texts, text_bytes < kMaxTextOfAll, row); !added)
        return fail(added.error());
      text_bytes += row.unified.size();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace okcvm::snapshots
