#include <fuzzer/FuzzedDataProvider.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "snapshots/mapped_reads.h"
#include "snapshots/store.h"
#include "tests/fuzz/expect.h"
#include "tests/support/manifest.h"

/// A session's snapshots with any files of the repository cut short, overwritten, removed or exchanged.
/// Whatever is answered afterwards is an error that says why, or exactly what was there when the snapshot
/// was taken.
namespace {

using namespace okcvm;
using namespace okcvm::snapshots;
using test::Manifest;
namespace fs = std::filesystem;

const fs::path& folder() {
  static const fs::path path = [] {
    const fs::path made = "/dev/shm/okcvm-fuzz-store-" + std::to_string(::getpid());
    fs::create_directories(made / "snapshots");
    fs::create_directories(made / "workspaces");
    std::atexit([] {
      std::error_code ignored;
      fs::remove_all("/dev/shm/okcvm-fuzz-store-" + std::to_string(::getpid()), ignored);
    });
    return made;
  }();
  return path;
}

StoreConfig config(const std::string& name) {
  return {folder() / "snapshots" / (name + ".git"), folder() / "workspaces" / name};
}

void write(const fs::path& path, std::string_view bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read(const fs::path& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

Manifest manifest_of_session(const fs::path& workspace) {
  if (!fs::exists(workspace)) return {};
  auto manifest = test::manifest_of(workspace);
  manifest.erase(".");  // no part of a session
  return manifest;
}

/// Tells a store of changes: of everything, or of none.
class Changes {
 public:
  explicit Changes(bool is_rescan) : is_rescan_(is_rescan) {}
  Store::ChangeSource source() {
    return {[this] {
              ChangeSet set;
              set.rescan = is_rescan_;
              set.counts_from = counts_from_;
              if (const auto zone = RelPath::parse("outputs")) set.changes = {{ChangeKind::kTree, *zone, {}}};
              return set;
            },
            [](const ChangeSet&) {},
            {},
            {},
            [this](const std::string& state) { counts_from_ = state; }};
  }
  Store::RestoreHooks hooks() {
    return {nullptr, source(), [](const std::vector<RelPath>&) {}};
  }

 private:
  bool is_rescan_;
  std::string counts_from_;
};

/// By id: what was there when it was taken.
using Taken = std::map<std::string, Manifest>;

void take(Store& store, Changes& changes, const std::string& label, Taken& taken) {
  const auto snapshot = store.take(label, changes.source(), nullptr);
  FUZZ_EXPECT(snapshot.has_value());
  taken[snapshot->id.text()] = manifest_of_session(config("s1").workspace);
}

std::string text_of(int lines) {
  std::string text;
  for (int line = 0; line < lines; ++line) text += "line " + std::to_string(line) + "\n";
  return text;
}

/// A session that has some of everything: deltas, loose objects and packs, links, long names, a restore.
void make_session(Changes& changes, Taken& taken) {
  const auto outputs = config("s1").workspace / "outputs";
  const auto store = Store::open(config("s1"));
  FUZZ_EXPECT(store.has_value());
  write(outputs / "report.md", text_of(2000));
  write(outputs / "a/b/c", "deep");
  write(outputs / "a" / std::string(250, 'n'), "long");
  fs::create_symlink("report.md", outputs / "latest");
  fs::create_hard_link(outputs / "report.md", outputs / "same");
  take(**store, changes, "one", taken);
  write(outputs / "report.md", text_of(2001));
  fs::rename(outputs / "a/b", outputs / "moved");
  take(**store, changes, "two", taken);
  const auto restored = (*store)->restore(taken.begin()->first, {}, false, changes.hooks(), nullptr);
  FUZZ_EXPECT(restored.has_value());
  write(outputs / "after", "a restore");
  take(**store, changes, "three", taken);
}

void damage(FuzzedDataProvider& provider) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(config("s1").repository))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  const auto any = [&] { return files[provider.ConsumeIntegralInRange<std::size_t>(0, files.size() - 1)]; };
  for (int count = provider.ConsumeIntegralInRange(1, 4); count > 0; --count) {
    const auto file = any();
    if (!fs::is_regular_file(file)) continue;
    ::chmod(file.c_str(), 0644);
    auto bytes = read(file);
    switch (provider.ConsumeIntegralInRange(0, 5)) {
      case 0:
        fs::resize_file(file, provider.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
        break;
      case 1:
        fs::remove(file);
        break;
      case 2:
        fs::remove(file);
        fs::create_directory(file);
        break;
      case 3:
        if (const auto other = any(); fs::is_regular_file(other)) write(file, read(other));
        break;
      case 4:
        write(file, bytes + provider.ConsumeRandomLengthString(64));
        break;
      default: {
        const auto change = provider.ConsumeRandomLengthString(16);
        const auto at = provider.ConsumeIntegralInRange<std::size_t>(0, bytes.size());
        write(file, bytes.replace(at, change.size(), change));
      }
    }
  }
}

/// What an answer to a call must be where it is none.
template <typename Answer>
bool is_told(const Answer& answer) {
  FUZZ_EXPECT(answer.has_value() || !answer.error().message.empty());
  return answer.has_value();
}

void expect_exact(const Manifest& expected, const fs::path& workspace) {
  const auto differences = test::differences(expected, manifest_of_session(workspace));
  for (const auto& difference : differences) std::fprintf(stderr, "differs: %s\n", difference.c_str());
  FUZZ_EXPECT(differences.empty());
}

/// Asks for all that can be asked for.
void use(Store& store, Changes& changes, Taken& taken) {
  const auto workspace = config("s1").workspace;
  write(workspace / "outputs/new", "since");
  const auto newest = store.take("", changes.source(), nullptr);
  if (is_told(newest)) taken[newest->id.text()] = manifest_of_session(workspace);
  is_told(store.verify("", changes.source(), nullptr));
  is_told(store.list(0));
  is_told(store.undo(changes.hooks(), nullptr));
  int forks = 0;
  for (const auto& [id, manifest] : Taken(taken)) {
    is_told(store.find(id));
    is_told(store.show(id, std::nullopt, nullptr));
    is_told(store.diff(id, std::nullopt, changes.source(), std::nullopt, nullptr));
    const auto target = config("fork" + std::to_string(++forks));
    if (is_told(store.fork(id, target, nullptr))) expect_exact(manifest, target.workspace);
    const auto before = manifest_of_session(workspace);
    const auto restored = store.restore(id, {}, false, changes.hooks(), nullptr);
    if (!is_told(restored)) {
      expect_exact(before, workspace);
      continue;
    }
    expect_exact(manifest, workspace);
    FUZZ_EXPECT(restored->before.has_value());
    taken.emplace(restored->before->id.text(), before);
  }
}

}  // namespace

/// libgit2 asks for what a damaged file tells it to, and takes no for an answer.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  watch_mapped_reads();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const char* part : {"snapshots", "workspaces"})
    for (const auto& entry : fs::directory_iterator(folder() / part)) fs::remove_all(entry);
  FuzzedDataProvider provider(data, size);
  Changes changes(false);
  Taken taken;
  make_session(changes, taken);
  damage(provider);

  auto left = changes;
  if (provider.ConsumeBool()) left = Changes(true);
  const auto before = manifest_of_session(config("s1").workspace);
  const auto store = Store::open(config("s1"));
  if (is_told(store))
    use(**store, left, taken);
  else
    expect_exact(before, config("s1").workspace);
  return 0;
}
