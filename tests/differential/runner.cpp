#include "tests/differential/runner.h"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <sstream>
#include <system_error>
#include <thread>

#include "tests/differential/generator.h"
#include "tests/differential/observation.h"
#include "tests/differential/side.h"
#include "tests/support/manifest.h"

namespace okcvm::differential {
namespace fs = std::filesystem;
namespace {

void make_open_to_all(const fs::path& directory) {
  if (::mkdir(directory.c_str(), 0777) != 0 || ::chmod(directory.c_str(), 0777) != 0)
    throw std::system_error(errno, std::generic_category(), "mkdir " + directory.string());
}

/// The two sides, one operation at a time.
class Pair {
 public:
  explicit Pair(const Arena& arena) : arena_(arena), a_(arena.a()), b_(arena.b()) {}

  /// Does it on both sides; what differed, or nothing.
  std::string step(Operation operation) {
    const bool of_holes =
        operation.kind == Kind::kSeek && (operation.flags == SEEK_DATA || operation.flags == SEEK_HOLE);
    if (of_holes && (a_.holes_are_unsure(operation.slot) || b_.holes_are_unsure(operation.slot)))
      operation.flags = SEEK_SET;
    const auto before_a = observe(a_, operation);
    const auto before_b = observe(b_, operation);
    const auto outcome_a = a_.perform(operation);
    const auto outcome_b = b_.perform(operation);
    succeeded_ = outcome_b.error == 0;
    if (outcome_a != outcome_b) return describe(outcome_a) + " | " + describe(outcome_b);
    const auto after_a = observe(a_, operation);
    const auto after_b = observe(b_, operation);
    return compare_observations(operation, succeeded_, before_a, after_a, before_b, after_b);
  }

  std::string compare_trees() const {
    const test::ManifestScope without_times{.times = false, .owners = true};
    const auto lines =
        test::differences(test::manifest_of(arena_.a()), test::manifest_of(arena_.b()), without_times);
    std::string text;
    for (const auto& line : lines) text += "\n  " + line;
    return text.empty() ? text : "the trees differ:" + text;
  }

  bool succeeded() const { return succeeded_; }

 private:
  const Arena& arena_;
  Side a_, b_;
  bool succeeded_ = false;
};

bool is_about_times(const std::string& what) {
  return what.find("mtime") != std::string::npos || what.find("ctime") != std::string::npos;
}

Mismatch mismatch_of(std::vector<Operation> operations, const std::string& what) {
  return {std::move(operations), what, is_about_times(what)};
}

/// The part of a difference that stays when operations are left out: everything before the first figure.
std::string gist(const Mismatch& mismatch) {
  const auto end = mismatch.what.find_first_of("0123456789\"|");
  return std::string(facts_of(mismatch.operations.back().kind).name) + mismatch.what.substr(0, end);
}

}  // namespace

Arena::Arena(const fs::path& a, const fs::path& b, const std::string& name) : a_(a / name), b_(b / name) {
  for (const auto& side : {a_, b_}) {
    make_open_to_all(side);
    make_open_to_all(side / "top");
  }
}

Arena::~Arena() {
  std::error_code ignored;
  fs::remove_all(a_, ignored);
  fs::remove_all(b_, ignored);
}

std::optional<Mismatch> run_random(const Arena& arena, std::uint64_t seed, int steps,
                                   const std::set<std::string>& without) {
  Pair pair(arena);
  Generator generator(seed, without);
  std::vector<Operation> operations;
  for (int i = 0; i < steps; ++i) {
    operations.push_back(generator.next());
    if (const auto what = pair.step(operations.back()); !what.empty()) return mismatch_of(operations, what);
    generator.learn(operations.back(), pair.succeeded());
  }
  if (const auto what = pair.compare_trees(); !what.empty()) return mismatch_of(operations, what);
  return std::nullopt;
}

std::optional<Mismatch> run_given(const Arena& arena, const std::vector<Operation>& operations, bool pause) {
  Pair pair(arena);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (pause && i + 1 == operations.size()) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    if (const auto what = pair.step(operations[i]); !what.empty())
      return mismatch_of({operations.begin(), operations.begin() + static_cast<long>(i) + 1}, what);
  }
  if (const auto what = pair.compare_trees(); !what.empty()) return mismatch_of(operations, what);
  return std::nullopt;
}

Mismatch shrink(const Mismatch& mismatch, const fs::path& a, const fs::path& b, const std::string& name,
                int seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const auto wanted = gist(mismatch);
  auto best = mismatch;
  int run = 0;
  const auto still_shows = [&](const std::vector<Operation>& operations) {
    const Arena arena(a, b, name + "-shrink" + std::to_string(run++));
    const auto found = run_given(arena, operations, mismatch.about_times);
    if (!found || gist(*found) != wanted || found->operations.size() > best.operations.size()) return false;
    best = *found;
    return true;
  };
  if (!still_shows(mismatch.operations)) return mismatch;
  // Halves, quarters, ... single operations; the last one always stays.
  for (std::size_t chunk = best.operations.size() / 2; chunk > 0; chunk /= 2)
    for (std::size_t at = 0; at + 1 < best.operations.size();) {
      if (std::chrono::steady_clock::now() > deadline) return best;
      auto fewer = best.operations;
      const auto end = std::min(at + chunk, fewer.size() - 1);
      fewer.erase(fewer.begin() + static_cast<long>(at), fewer.begin() + static_cast<long>(end));
      if (!still_shows(fewer)) at += chunk;
    }
  return best;
}

std::string report(const Mismatch& mismatch) {
  constexpr std::size_t kShown = 60;
  const auto& operations = mismatch.operations;
  const auto first = operations.size() > kShown ? operations.size() - kShown : 0;
  std::ostringstream text;
  if (first > 0) text << "  (" << first << " operations before these)\n";
  for (std::size_t i = first; i < operations.size(); ++i)
    text << "  " << i << ": " << describe(operations[i]) << "\n";
  text << "  => " << mismatch.what << "\n";
  return text.str();
}

}  // namespace okcvm::differential
