// Links: where they may lead, read from, and move.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <thread>

#include "fusefs/operations.h"
#include "policy/fault.h"
#include "policy/symlink_rule.h"

namespace okcvm::fusefs {

bool Operations::link_allowed(std::string_view text, std::optional<std::size_t> depth) {
  constexpr std::size_t kLeast = 1;  // a zone's
  return std::any_of(
      config_.mount_points.begin(), config_.mount_points.end(), [&](const std::string& mount_point) {
        return link_is_contained(text, {depth.value_or(kLeast), mount_point, config_.symlink_host_roots});
      });
}

Result<std::string> Operations::link_text(const Node& node, struct stat& status) {
  auto link = open_inode(node, O_PATH | O_NOFOLLOW);
  if (!link) return fail(link.error());
  std::array<char, PATH_MAX> text;
  const ssize_t size = ::readlinkat(link->get(), "", text.data(), text.size());
  if (size < 0 || ::fstat(link->get(), &status) != 0) return fail_errno(errno);
  nodes_.not_told(node.id);
  return std::string(text.data(), static_cast<std::size_t>(size));
}

bool Operations::stays_in(const Node& link, std::string_view text, const struct stat& status) {
  return link_allowed(text, status.st_nlink > 1 || link.dead ? std::nullopt : nodes_.depth(link.parent));
}

bool Operations::stays_in_anywhere(int file, const char* name, const struct stat& status) {
  std::array<char, PATH_MAX> text;
  if (!S_ISLNK(status.st_mode)) return false;
  const ssize_t size = ::readlinkat(file, name, text.data(), text.size());
  return size >= 0 && link_allowed({text.data(), static_cast<std::size_t>(size)}, std::nullopt);
}

Result<std::string> Operations::read_link(NodeId id) {
  auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  struct stat status {};
  auto text = link_text(*node, status);
  fault_point("readlink.read");
  if (!text || link_allowed(*text, std::nullopt)) return text;
  nodes_.set_bound_to_place(id);
  node = nodes_.find(id);  // it may have been moved before that
  if (!node) return fail(node.error());
  if (!stays_in(*node, *text, status)) return deny("readlink", node->parent, node->name.c_str(), EPERM);
  return text;
}

void Operations::note_deeper_move(const InodeKey& moved, mode_t mode, const Directory& from,
                                  const Directory& to) {
  if (from.id == to.id || !(S_ISDIR(mode) || S_ISLNK(mode))) return;
  const auto id = nodes_.id_of(moved);
  const auto former_depth = nodes_.depth(from.id);
  const auto depth = nodes_.depth(to.id);
  const bool is_certain = depth && former_depth && nodes_.misplaced_from(to.id).empty();
  if (!id || (is_certain && *depth <= *former_depth)) return;
  if (S_ISLNK(mode)) {
    // One that may stand anywhere may have several names, which must stay one node.
    const auto node = nodes_.find(*id);
    struct stat status {};
    const auto text = node ? link_text(*node, status) : Result<std::string>(fail(node.error()));
    if (!text || !link_allowed(*text, std::nullopt)) nodes_.set_misplaced(*id);
    return;
  }
  deeper_moves_.begin(*id);
  kernel_.after_changes_in(to.id, [this, id = *id] { deeper_moves_.end(id); });
}

bool Operations::may_be_moving(const Node& node) {
  std::vector<NodeId> moved;
  for (const auto fact : state_.old_facts()) {
    if (fact.is_exchange()) return true;  // the other one is not known
    if (const auto id = nodes_.id_of({node.key.volume, fact.inode_number()})) moved.push_back(*id);
  }
  return nodes_.is_at_or_below(node.id, moved);
}

Result<std::string> Operations::read_link_of_kernel(NodeId id, int most_waits) {
  constexpr int kMostLooks = 300;  // while others move
  constexpr int kMostWaits = 200;  // of a millisecond
  const auto node = nodes_.find(id);
  if (!node) return fail(node.error());
  for (int i = 0; i < kMostLooks; ++i) {
    const auto begun = deeper_moves_.begun();
    struct stat status {};
    auto text = nodes_.is_misplaced(id) ? link_text(*node, status) : read_link(id);
    if (!text || link_allowed(*text, std::nullopt)) return text;
    if (nodes_.is_misplaced(id)) return fail_errno(ESTALE);
    // A dead daemon's move stands in the node table, and the kernel hears of it when the request comes again.
    if (may_be_moving(*node)) {
      if (i >= kMostWaits) return fail_errno(ESTALE);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (nodes_.is_at_or_below(id, deeper_moves_.under_way())) {
      if (--most_waits < 0) break;
      deeper_moves_.let_end();
      continue;
    }
    if (deeper_moves_.begun() == begun) return text;
  }
  return fail_errno(ESTALE);
}

void Operations::add_links_to_recheck(const struct stat& moved, const Directory& from, const Directory& to,
                                      std::vector<NodeId>& links) {
  if (from.id == to.id || !(S_ISDIR(moved.st_mode) || S_ISLNK(moved.st_mode))) return;
  const auto former_depth = nodes_.depth(from.id);
  const auto depth = nodes_.depth(to.id);
  if (depth && former_depth && *depth >= *former_depth) return;
  for (const NodeId id : nodes_.all_of({from.volume, moved.st_ino})) {
    const auto known = nodes_.bound_links_from(id);
    links.insert(links.end(), known.begin(), known.end());
  }
}

// That waits for a thread that answers READLINK, so all threads but one must be able to go on. The kernel has
// names move from directory to directory in a mount one at a time (s_vfs_rename_mutex), so no two are here.
bool Operations::drop_texts(const std::vector<NodeId>& links) {
  return links.empty() || kernel_.links_now(links);
}

}  // namespace okcvm::fusefs
