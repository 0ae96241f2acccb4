#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <string>
#include <vector>

#include "policy/git_config.h"
#include "policy/prompt_paths.h"
#include "policy/rel_path.h"
#include "policy/session_id.h"
#include "policy/symlink_rule.h"
#include "policy/workdir_rule.h"
#include "tests/fuzz/expect.h"

/// The rules over texts that come from agents, each held against a slower and plainer wording of itself.
namespace {

using namespace okcvm;

constexpr std::string_view kMountPoint = "/mnt/okcvm-12ab34cd";

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == '/')
      parts.emplace_back();
    else
      parts.back().push_back(c);
  return parts;
}

bool is_name(const std::string& part) {
  return !part.empty() && part != "." && part != ".." && part.size() <= 255 &&
         part.find_first_of(std::string_view("/\0", 2)) == part.npos;
}

void check_error(const Error& error) {
  FUZZ_EXPECT(error.errno_value > 0);
  FUZZ_EXPECT(!error.message.empty());
}

void check_path(const RelPath& path) {
  FUZZ_EXPECT(path.text().size() <= 4095);
  const auto parts = path.components();
  FUZZ_EXPECT(parts.size() == path.depth());
  for (const auto part : parts) FUZZ_EXPECT(is_name(std::string(part)));
  FUZZ_EXPECT(path.is_root() == parts.empty());
  FUZZ_EXPECT(path.top() == (parts.empty() ? "" : parts.front()));
  FUZZ_EXPECT(path.leaf() == (parts.empty() ? "" : parts.back()));
  FUZZ_EXPECT(path.is_within(path.parent()));
  FUZZ_EXPECT(path.is_root() || !path.parent().is_within(path));
  const auto again = RelPath::parse(path.text());
  FUZZ_EXPECT(again && *again == path);
  if (!path.is_root()) FUZZ_EXPECT(path.parent() / *Name::parse(path.leaf()) == path);
}

void fuzz_paths(const std::string& text) {
  const auto name = Name::parse(text);
  FUZZ_EXPECT(name.has_value() == is_name(text));
  if (!name) check_error(name.error());

  const auto path = RelPath::parse(text);
  if (!path) {
    check_error(path.error());
  } else {
    check_path(*path);
    FUZZ_EXPECT(path->is_root() || text == path->text() || text == path->text() + "/");
  }

  const auto rebased = rebase_path(text, kMountPoint);
  if (rebased)
    check_path(*rebased);
  else
    check_error(rebased.error());

  const auto id = SessionId::parse(text);
  if (id) FUZZ_EXPECT(is_name(text) && text.size() <= 64 && text.front() != '.' && text.front() != '-');
}

/// Where following a link's text from a directory `depth` below the root leads: never above the root, nor
/// through a name and up again (that name may itself be a link).
bool stays_inside(const std::string& text, std::size_t depth) {
  if (text.empty() || text.find('\0') != text.npos) return false;
  auto rest = std::string_view(text);
  bool may_go_up = true;
  if (rest.front() == '/') {
    bool below = false;
    for (const std::string_view root : {kMountPoint, std::string_view("/usr")})
      below |= rest.starts_with(root) && (rest.size() == root.size() || rest[root.size()] == '/');
    if (!below) return false;
    may_go_up = false;
  }
  for (const auto& part : split(rest)) {
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      may_go_up = false;
    } else if (!may_go_up || depth-- == 0) {
      return false;
    }
  }
  return true;
}

void fuzz_links(const std::string& text, std::size_t depth) {
  const std::array<std::string, 1> roots{"/usr"};
  const bool contained = link_is_contained(text, {depth, kMountPoint, roots});
  if (contained) FUZZ_EXPECT(stays_inside(text, depth));
}

void fuzz_workdirs(const std::string& text) {
  const std::array<std::string, 1> allowed{"/home/alice/work"};
  const std::array<std::string, 1> own{"/home/alice/work/state"};
  const auto checked = check_workdir(text, {allowed, own, "/home/alice"});
  if (checked) {
    FUZZ_EXPECT(text == allowed[0] || text.starts_with(allowed[0] + "/"));
    FUZZ_EXPECT(text != own[0] && !text.starts_with(own[0] + "/"));
  } else {
    check_error(checked.error());
  }
  expand_home(text, "/home/alice");
  const auto url = normal_git_url(text);
  FUZZ_EXPECT(normal_git_url("https://" + url) == url || url != normal_git_url(url));
}

void fuzz_git_config(const std::string& text) {
  if (const auto url = remote_url_in(text)) FUZZ_EXPECT(!url->empty());
  if (text.empty()) return;
  std::string config = "[remote \"origin\"]\nurl = \"";
  for (const char c : text) {
    if (c == '"' || c == '\\') config += '\\';
    config += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  FUZZ_EXPECT(remote_url_in(config + "\"") == text);
}

void fuzz_prompts(const std::string& text) {
  const auto adapted = adapt_prompt(text, kMountPoint);
  FUZZ_EXPECT((adapted.replaced == 0) == (adapted.text == text));
  FUZZ_EXPECT(adapt_prompt(adapted.text, kMountPoint).replaced == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider provider(data, size);
  const auto depth = provider.ConsumeIntegralInRange<std::size_t>(0, 6);
  const auto text = provider.ConsumeRemainingBytesAsString();
  fuzz_paths(text);
  fuzz_links(text, depth);
  fuzz_workdirs(text);
  fuzz_git_config(text);
  fuzz_prompts(text);
  return 0;
}
