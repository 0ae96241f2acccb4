#include <getopt.h>
#include <sys/statfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "tests/bench/contestants.h"
#include "tests/bench/report.h"
#include "tests/bench/rows.h"
#include "tests/support/process.h"
#include "tests/support/scratch.h"
#include "tests/support/watchdog.h"

namespace okcvm::bench {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kUsage =
    "usage: fs_bench [--dir DIR] [--rounds N] [--json FILE] [--only WORDS] [--contestants a,b] [--files N]\n"
    "                [--repository-files N] [--passthrough auto|off] [--requests] [--no-fio] "
    "[--no-sessions]\n"
    "Measures native, okcvm, bindfs and fuse-overlayfs interleaved; medians of ratios to native. See "
    "README.md.\n";

struct Options {
  std::string directory = "/dev/shm";
  int rounds = 5;
  std::string json;
  std::string only;  // rows whose name contains this are reported; the others run once where they are needed
  int repository_files = 4650;
  bool requests = false;
  bool sessions = true;
  ContestantOptions contestants;
  RowOptions rows;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

Options parse(int count, char** arguments) {
  static constexpr option kOptions[] = {{"dir", required_argument, nullptr, 'd'},
                                        {"rounds", required_argument, nullptr, 'r'},
                                        {"json", required_argument, nullptr, 'j'},
                                        {"only", required_argument, nullptr, 'o'},
                                        {"contestants", required_argument, nullptr, 'c'},
                                        {"files", required_argument, nullptr, 'f'},
                                        {"repository-files", required_argument, nullptr, 'g'},
                                        {"passthrough", required_argument, nullptr, 'p'},
                                        {"requests", no_argument, nullptr, 'q'},
                                        {"no-fio", no_argument, nullptr, 'F'},
                                        {"no-sessions", no_argument, nullptr, 'S'},
                                        {"help", no_argument, nullptr, 'h'},
                                        {nullptr, 0, nullptr, 0}};
  Options options;
  for (int letter; (letter = ::getopt_long(count, arguments, "", kOptions, nullptr)) != -1;) switch (letter) {
      case 'd':
        options.directory = optarg;
        break;
      case 'r':
        options.rounds = std::atoi(optarg);
        break;
      case 'j':
        options.json = fs::absolute(optarg);  // the rows change the working directory
        break;
      case 'o':
        options.only = optarg;
        break;
      case 'c':
        options.contestants.names = split(optarg);
        break;
      case 'f':
        options.rows.files = std::atoi(optarg);
        break;
      case 'g':
        options.repository_files = std::atoi(optarg);
        break;
      case 'p':
        options.contestants.passthrough = optarg;
        break;
      case 'q':
        options.requests = true;
        break;
      case 'F':
        options.rows.with_fio = false;
        break;
      case 'S':
        options.sessions = false;
        break;
      case 'h':
        std::cout << kUsage;
        std::exit(0);
      default:
        std::cerr << kUsage;
        std::exit(2);
    }
  if (optind != count || options.rounds < 1) {
    std::cerr << kUsage;
    std::exit(2);
  }
  options.contestants.programs = fs::read_symlink("/proc/self/exe").parent_path();
  return options;
}

/// Every row in every contestant's directory, in turns, so that a noisy moment meets all of them.
std::vector<Measured> measure(const Options& options,
                              const std::vector<std::unique_ptr<Contestant>>& contestants) {
  const auto rows = make_rows(options.rows);
  const auto is_reported = [&](const std::string& row) {
    return row.find(options.only) != std::string::npos;
  };
  if (std::ranges::none_of(rows, is_reported, &Row::name))
    throw std::runtime_error("--only " + options.only + ": no row has that in its name");
  std::vector<Measured> table;
  for (const auto& row : rows) table.push_back({row.name, row.target, {}, {}});
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t index = 0; index < rows.size(); ++index)
      for (std::size_t turn = 0; turn < contestants.size(); ++turn) {
        auto& contestant = *contestants[(turn + static_cast<std::size_t>(round)) % contestants.size()];
        const auto before = contestant.requests();
        const double seconds = rows[index].run(contestant.directory());
        table[index].seconds[contestant.name()].push_back(seconds);
        if (round > 0) continue;
        for (const auto& [opcode, sum] : contestant.requests()) {
          const auto earlier = before.find(opcode);
          if (const auto own = sum - (earlier == before.end() ? 0 : earlier->second); own > 0)
            table[index].requests[opcode] = own;
        }
      }
    for (const auto& contestant : contestants)
      for (const auto& entry : fs::directory_iterator(contestant->directory())) fs::remove_all(entry);
    std::cerr << "round " << round + 1 << " of " << options.rounds << " done\n";
  }
  std::erase_if(table, [&](const Measured& row) { return !is_reported(row.row); });
  return table;
}

nlohmann::json conditions(const Options& options) {
  utsname host{};
  ::uname(&host);
  struct statfs space {};
  ::statfs(options.directory.c_str(), &space);
  std::ostringstream type;
  type << "0x" << std::hex << space.f_type;
  return {{"kernel", host.release},
          {"cpus", std::thread::hardware_concurrency()},
          {"directory", options.directory},
          {"file_system_magic", type.str()},
          {"rounds", options.rounds},
          {"passthrough", options.contestants.passthrough},
          {"repository_files", options.repository_files},
          {"loop_files", options.rows.files}};
}

void run(Options options) {
  ::setenv("OKCVM_TEST_DIR", options.directory.c_str(), 1);
  test::Watchdog::instance();
  const test::ScratchDirectory scratch("bench");
  test::Watchdog::instance().guard(scratch.path());
  test::Watchdog::instance().expect_progress(std::chrono::seconds(3600));
  options.contestants.top = scratch.path();
  options.rows.repository = scratch / "repository";
  make_repository(options.rows.repository, options.repository_files);

  nlohmann::json result{{"conditions", conditions(options)}};
  {
    const auto contestants = make_contestants(options.contestants);
    std::vector<std::string> names;
    for (const auto& contestant : contestants) names.push_back(contestant->name());
    const auto table = measure(options, contestants);
    std::cout << "Ratios to native, medians of " << options.rounds
              << " rounds (lower is better; bold: over the target)\n\n"
              << as_markdown(table, names) << "\n";
    if (options.requests) std::cout << requests_as_markdown(table) << "\n";
    result["rows"] = as_json(table, names);
  }
  if (options.sessions) {
    const auto program = (options.contestants.programs / "session_cost").string();
    const auto cost = test::run({.arguments = {program},
                                 .environment = {"OKCVM_TEST_DIR=" + options.directory},
                                 .timeout = std::chrono::seconds(600)});
    if (cost.exit_code != 0) throw std::runtime_error("session_cost: " + cost.output);
    const auto parsed = nlohmann::json::parse(cost.output);
    std::cout << "| sessions | measured | target |\n| --- | ---: | ---: |\n";
    for (const auto& row : parsed)
      std::cout << "| " << row.at("what").get<std::string>() << " | " << row.at("value").dump() << " "
                << row.at("unit").get<std::string>() << " | " << row.value("target", "") << " |\n";
    result["sessions"] = parsed;
  }
  if (!options.json.empty()) std::ofstream(options.json) << result.dump(2) << "\n";
  test::Watchdog::instance().rest();
}

}  // namespace
}  // namespace okcvm::bench

int main(int count, char** arguments) try {
  okcvm::bench::run(okcvm::bench::parse(count, arguments));
  return 0;
} catch (const std::exception& error) {
  std::cerr << "fs_bench: " << error.what() << "\n";
  return 1;
}
