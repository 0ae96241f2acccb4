// What snapshots and restores cost, beside git on the same files in the same run.
//
//   snapshot_bench [--dir FOLDER] [--rounds N] [--files N] [--json]
//   snapshot_bench --work take|restore|none [--shape folders|flat|deep] [--rounds N] [--files N]
//   snapshot_bench --huge
//
// FOLDER (default /dev/shm) gets a folder of its own, which is removed at the end. Every figure is the median
// of the rounds, in milliseconds. git runs as an agent would run it: `add -A` and `commit`, `reset --hard`
// and `clean`. The second form does one thing again and again, without git, for profilers: what happens
// between two calls of access("/okcvm-work") is the work. The third takes and restores a file of 4 GiB and
// tells how much memory that took.

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "snapshots/store.h"

namespace {

using namespace okcvm;
using namespace okcvm::snapshots;
namespace fs = std::filesystem;

constexpr std::uint64_t kLargeFile = 1ULL << 30;
constexpr std::uint64_t kMostMemory = 64 << 20;  // that a huge file may take
constexpr int kChanged = 10;
constexpr int kFilesPerFolder = 100;
constexpr int kFilesPerLevel = 500;  // of the deep shape

/// How the files lie: a hundred a folder; all in one; five hundred in each of nested folders.
enum class Shape { kFolders, kFlat, kDeep };

struct Options {
  std::string work;
  Shape shape = Shape::kFolders;
  bool huge = false;
  fs::path folder = "/dev/shm";
  int rounds = 5;
  int files = 50'000;
  bool json = false;
};

struct Row {
  std::string work;
  double ours_ms = 0;
  double git_ms = 0;    // 0: git was not asked
  double least_ms = 0;  // ours, in the best round
  std::string target;   // empty: none
  bool met = false;
};

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// What this process has used of processors, which a busy machine changes little.
double processor_milliseconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e3 + static_cast<double>(used.tv_nsec) / 1e6;
}

double least(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// Runs `git` in a folder; nothing of the host's configuration counts.
void git(const fs::path& folder, const std::string& arguments) {
  const std::string command =
      "cd '" + folder.string() +
      "' && HOME=/nonexistent GIT_CONFIG_NOSYSTEM=1 git -c user.name=b -c user.email=b@b -c gc.auto=0 " +
      arguments + " >/dev/null 2>&1";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("git " + arguments);
}

std::string text(std::mt19937& random, std::size_t size) {
  std::string bytes;
  while (bytes.size() < size) bytes += "line " + std::to_string(random() % 100'000) + " of some text\n";
  bytes.resize(size);
  return bytes;
}

void write_file(const fs::path& path, const std::string& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    throw std::runtime_error("cannot write " + path.string());
  ::close(fd);
}

/// "12/34/file56": a hundred entries a folder at most. Or "file123456". Or "d/d/d/file123456".
std::string path_of(int number, Shape shape) {
  if (shape == Shape::kFlat) return "file" + std::to_string(number);
  if (shape == Shape::kDeep) {
    std::string path;
    for (int level = 0; level < number / kFilesPerLevel; ++level) path += "d/";
    return path + "file" + std::to_string(number);
  }
  const int folder = number / kFilesPerFolder;
  return std::to_string(folder / 100) + "/" + std::to_string(folder % 100) + "/file" +
         std::to_string(number % kFilesPerFolder);
}

void make_files(const fs::path& top, int count, Shape shape) {
  std::mt19937 random(1);
  for (int i = 0; i < count; ++i) {
    const fs::path path = top / path_of(i, shape);
    if (i % kFilesPerFolder == 0) fs::create_directories(path.parent_path());
    write_file(path, text(random, 200 + random() % 3800));
  }
}

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message + " " + result.error().path);
  return std::move(*result);
}

/// A session's folder and store, and the same files in a git repository of its own.
class Bench {
 public:
  Bench(const fs::path& folder, int files, bool with_git, Shape shape = Shape::kFolders)
      : folder_(folder), files_(files), with_git_(with_git), shape_(shape) {
    fs::create_directories(folder_ / "w/outputs");
    make_files(folder_ / "w/outputs", files, shape);
    if (with_git_) fs::copy(folder_ / "w/outputs", folder_ / "g", fs::copy_options::recursive);
    open();
  }
  ~Bench() {
    store_.reset();
    fs::remove_all(folder_);
  }

  double first_of_ours() {
    store_.reset();
    fs::remove_all(folder_ / "s.git");
    open();
    changes_.assign(1, {ChangeKind::kTree, value_of(RelPath::parse("outputs")), {}});
    return milliseconds([this] { take("first"); });
  }
  double first_of_git() {
    fs::remove_all(folder_ / "g/.git");
    return milliseconds([this] {
      git(folder_ / "g", "init -q");
      git(folder_ / "g", "add -A");
      git(folder_ / "g", "commit -qm first");
    });
  }

  /// Changes ten files, here and there.
  void change_some() {
    for (int i = 0; i < kChanged; ++i) {
      const std::string path = path_of(static_cast<int>(random_() % static_cast<unsigned>(files_)), shape_);
      const std::string bytes = text(random_, 2000);
      write_file(folder_ / "w/outputs" / path, bytes);
      if (with_git_) write_file(folder_ / "g" / path, bytes);
      changes_.push_back({ChangeKind::kContent, value_of(RelPath::parse("outputs/" + path)), {}});
    }
  }
  Snapshot take(const std::string& label) { return value_of(store_->take(label, source(), nullptr)); }
  void commit() {
    git(folder_ / "g", "add -A");
    git(folder_ / "g", "commit -qm next");
  }
  void restore(const Snapshot& to) {
    value_of(store_->restore(to.id.text(), {}, false, {nullptr, source(), nullptr}, nullptr));
  }
  void reset() {
    git(folder_ / "g", "reset -q --hard");
    git(folder_ / "g", "clean -qfdx");
  }

  Store::ChangeSource source() {
    return {[this] {
              return ChangeSet{false, "", changes_, {}, 0};
            },
            [this](const ChangeSet&) { changes_.clear(); }};
  }
  const fs::path& folder() const { return folder_; }
  void changed(const std::string& path) {
    changes_.push_back({ChangeKind::kContent, value_of(RelPath::parse(path)), {}});
  }

 private:
  void open() { store_ = value_of(Store::open({folder_ / "s.git", folder_ / "w", 0, 0})); }

  fs::path folder_;
  int files_;
  bool with_git_;
  Shape shape_;
  std::mt19937 random_{7};
  std::vector<Change> changes_;
  std::unique_ptr<Store> store_;
};

/// What is measured at one number of files.
struct Figures {
  std::vector<double> first, first_git, some, some_git, none, back, back_git;
};

Figures measure(const fs::path& folder, int files, int rounds, bool with_git, Shape shape = Shape::kFolders) {
  Bench bench(folder, files, with_git, shape);
  Figures figures;
  for (int round = 0; round < (with_git ? rounds : 1); ++round) {
    figures.first.push_back(bench.first_of_ours());
    if (with_git) figures.first_git.push_back(bench.first_of_git());
  }
  for (int round = 0; round < rounds; ++round) {
    bench.change_some();
    Snapshot taken = bench.take("warm");
    if (with_git) bench.commit();
    bench.change_some();
    figures.some.push_back(milliseconds([&] { taken = bench.take("some"); }));
    if (with_git) figures.some_git.push_back(milliseconds([&] { bench.commit(); }));
    figures.none.push_back(milliseconds([&] { bench.take(""); }));
    bench.change_some();
    figures.back.push_back(milliseconds([&] { bench.restore(taken); }));
    if (with_git) figures.back_git.push_back(milliseconds([&] { bench.reset(); }));
  }
  return figures;
}

/// A file of 1 GiB that changes each time: half of it text, half of it noise.
void write_large(const fs::path& path, unsigned seed) {
  std::mt19937 random(seed);
  std::string noise(1 << 20, '\0');
  for (std::size_t i = 0; i + 4 <= noise.size(); i += 4) {
    const auto value = static_cast<std::uint32_t>(random());
    noise.replace(i, 4, reinterpret_cast<const char*>(&value), 4);
  }
  const std::string words = text(random, 1 << 20);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  for (std::uint64_t at = 0; at < kLargeFile; at += 2 << 20)
    for (const std::string* piece : {static_cast<const std::string*>(&noise), &words})
      if (::write(fd, piece->data(), piece->size()) < 0)
        throw std::runtime_error("cannot write " + path.string());
  ::close(fd);
}

std::pair<std::vector<double>, std::vector<double>> measure_large(const fs::path& folder, int rounds) {
  Bench bench(folder, 1, true);
  git(folder / "g", "init -q");
  bench.changed("outputs/0");
  bench.take("first");
  std::vector<double> ours, gits;
  for (int round = 0; round < rounds; ++round) {
    write_large(folder / "w/outputs/large", static_cast<unsigned>(round));
    bench.changed("outputs/large");
    ours.push_back(milliseconds([&] { bench.take("large"); }));
    gits.push_back(milliseconds([&] { git(folder / "g", "hash-object -w ../w/outputs/large"); }));
  }
  return {ours, gits};
}

/// One thing again and again, between marks that a trace shows.
int profile(const fs::path& folder, const Options& options) {
  Bench bench(folder, options.files, false, options.shape);
  bench.first_of_ours();
  std::vector<double> times, processor_times;
  Snapshot taken = bench.take("before");
  for (int round = 0; round < options.rounds; ++round) {
    if (options.work != "none") bench.change_some();
    if (options.work == "restore") {
      taken = bench.take("kept");
      bench.change_some();
    }
    ::access("/okcvm-work", F_OK);
    const double before = processor_milliseconds();
    times.push_back(milliseconds([&] {
      if (options.work == "restore")
        bench.restore(taken);
      else
        bench.take(options.work == "none" ? "" : "some");
    }));
    processor_times.push_back(processor_milliseconds() - before);
    ::access("/okcvm-work", F_OK);
  }
  std::printf("%s: median %.2f ms, least %.2f ms; on processors: median %.2f ms, least %.2f ms\n",
              options.work.c_str(), median(times), least(times), median(processor_times),
              least(processor_times));
  return 0;
}

std::uint64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

/// A file of 4 GiB and a bit, most of it data, there and back.
int measure_huge(const fs::path& folder) {
  constexpr std::uint64_t kHuge = (4ULL << 30) + 4321;
  Bench bench(folder, 1, false);
  const fs::path path = folder / "w/outputs/huge", other = folder / "compare";
  const auto make = [&](const fs::path& file) {
    std::mt19937 random(3);
    std::string piece = text(random, 1 << 20);
    const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    for (std::uint64_t at = 0; at < kHuge; at += piece.size()) {
      piece.replace(0, 8, reinterpret_cast<const char*>(&at), 8);
      const std::size_t size = std::min<std::uint64_t>(piece.size(), kHuge - at);
      if (::write(fd, piece.data(), size) != static_cast<ssize_t>(size))
        throw std::runtime_error("cannot write");
    }
    ::close(fd);
  };
  bench.changed("outputs/0");
  Snapshot taken = bench.take("before");
  make(path);
  bench.changed("outputs/huge");
  const std::uint64_t at_start = peak_memory();
  const double take_ms = milliseconds([&] { taken = bench.take("huge"); });
  const std::uint64_t after_take = peak_memory();
  fs::remove(path);
  bench.changed("outputs/huge");
  const double restore_ms = milliseconds([&] { bench.restore(taken); });
  const std::uint64_t after_restore = peak_memory();
  make(other);
  const bool same = std::system(("cmp '" + path.string() + "' '" + other.string() + "'").c_str()) == 0;
  std::printf("4 GiB: snapshot %.0f ms, %.1f MiB more memory; restore %.0f ms, %.1f MiB more; bytes %s\n",
              take_ms, static_cast<double>(after_take - at_start) / (1 << 20), restore_ms,
              static_cast<double>(after_restore - after_take) / (1 << 20), same ? "as before" : "DIFFER");
  return same && after_restore - at_start < kMostMemory ? 0 : 1;
}

void print_table(const std::vector<Row>& rows) {
  std::printf(
      "| work | okcvm ms | best | git ms | okcvm / git | target | |\n| --- | --- | --- | --- | --- | --- | "
      "--- |\n");
  for (const auto& row : rows) {
    std::printf("| %s | %.2f | %.2f | ", row.work.c_str(), row.ours_ms, row.least_ms);
    if (row.git_ms > 0)
      std::printf("%.1f | %.3f", row.git_ms, row.ours_ms / row.git_ms);
    else
      std::printf("– | –");
    std::printf(" | %s | %s |\n", row.target.c_str(), row.target.empty() ? "" : row.met ? "met" : "missed");
  }
}

void print_json(const std::vector<Row>& rows) {
  std::printf("[");
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::printf(
        "%s\n  {\"work\": \"%s\", \"okcvm_ms\": %.3f, \"least_ms\": %.3f, \"git_ms\": %.3f, \"target\": "
        "\"%s\", "
        "\"met\": %s}",
        i ? "," : "", rows[i].work.c_str(), rows[i].ours_ms, rows[i].least_ms, rows[i].git_ms,
        rows[i].target.c_str(), rows[i].met ? "true" : "false");
  std::printf("\n]\n");
}

Shape shape_of(const std::string& name) {
  if (name == "folders") return Shape::kFolders;
  if (name == "flat") return Shape::kFlat;
  if (name == "deep") return Shape::kDeep;
  throw std::runtime_error("a shape is folders, flat or deep");
}

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == count) throw std::runtime_error(argument + " needs a value");
      return arguments[++i];
    };
    if (argument == "--dir")
      options.folder = value();
    else if (argument == "--rounds")
      options.rounds = std::max(1, std::atoi(value().c_str()));
    else if (argument == "--files")
      options.files = std::max(kFilesPerFolder, std::atoi(value().c_str()));
    else if (argument == "--json")
      options.json = true;
    else if (argument == "--huge")
      options.huge = true;
    else if (argument == "--work")
      options.work = value();
    else if (argument == "--shape")
      options.shape = shape_of(value());
    else
      throw std::runtime_error("unknown option " + argument + "; the head of snapshot_bench.cpp lists them");
  }
  return options;
}

std::vector<Row> measure_all(const fs::path& folder, const Options& options) {
  const std::string files = std::to_string(options.files);
  const std::string many = std::to_string(options.files * 10);
  std::vector<Row> rows;
  const auto add = [&rows](const std::string& work, const std::vector<double>& ours,
                           const std::vector<double>& gits, const std::string& target,
                           const std::function<bool(double, double)>& meets) {
    const double time = median(ours), git_time = median(gits);
    rows.push_back({work, time, git_time, least(ours), target, meets(time, git_time)});
    return time;
  };
  const auto no_target = [](double, double) { return true; };

  const Figures few = measure(folder / "few", options.files, options.rounds, true);
  const double some =
      add("snapshot, 10 changed of " + files + " files", few.some, few.some_git, "5 ms, 1/30 of git",
          [](double time, double git) { return time <= 5 && time * 30 <= git; });
  add("snapshot, nothing changed", few.none, {}, "1 ms", [](double time, double) { return time <= 1; });
  add("first snapshot of " + files + " files", few.first, few.first_git, "0.7 of git",
      [](double time, double git) { return time <= 0.7 * git; });
  add("restore of 10 changed of " + files, few.back, few.back_git, "10 ms, 1/10 of git",
      [](double time, double git) { return time <= 10 && time * 10 <= git; });
  const auto [large, large_git] = measure_large(folder / "large", options.rounds);
  add("1 GiB file changed", large, large_git, "1.2 of git",
      [](double time, double git) { return time <= 1.2 * git; });
  const Figures more = measure(folder / "many", options.files * 10, options.rounds, false);
  add("snapshot, 10 changed of " + many + " files", more.some, {}, "1.3 of that of " + files,
      [some](double time, double) { return time <= 1.3 * some; });
  for (const auto& [shape, name] :
       {std::pair(Shape::kFlat, "in one folder"), std::pair(Shape::kDeep, "in 100 nested folders")}) {
    const Figures shaped = measure(folder / "shaped", options.files, options.rounds, true, shape);
    add("snapshot, 10 changed of " + files + " " + name, shaped.some, shaped.some_git, "", no_target);
    add("restore of 10 changed of " + files + " " + name, shaped.back, shaped.back_git, "", no_target);
  }
  return rows;
}

int run(const Options& options) {
  const fs::path folder = options.folder / ("okcvm-snapshot-bench." + std::to_string(::getpid()));
  fs::create_directories(folder);
  int status = 0;
  if (options.huge) {
    status = measure_huge(folder / "huge");
  } else if (!options.work.empty()) {
    status = profile(folder / "profile", options);
  } else {
    const auto rows = measure_all(folder, options);
    options.json ? print_json(rows) : print_table(rows);
    status = std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.met; }) ? 0 : 1;
  }
  fs::remove_all(folder);
  return status;
}

}  // namespace

int main(int count, char** arguments) try {
  return run(parse(count, arguments));
} catch (const std::exception& error) {
  std::fprintf(stderr, "snapshot_bench: %s\n", error.what());
  return 2;
}
