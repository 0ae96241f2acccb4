#include "tools/daemon/host/options.h"

#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <charconv>
#include <fstream>
#include <map>
#include <ostream>

namespace okcvm::daemon {
namespace {

namespace po = boost::program_options;
using Kind = OptionRow::Kind;

constexpr std::int64_t kMillion = 1'000'000;
constexpr std::int64_t kPebibyte = std::int64_t{1} << 50;

constexpr std::array kTable{
    OptionRow{"config", "PATH", "/etc/okcvm/okcvmd.conf", "INI file to read", Kind::kPath},
    OptionRow{"state-dir", "PATH", "/var/lib/okcvm", "workspaces, snapshots and the registry", Kind::kPath},
    OptionRow{"run-dir", "PATH", "/run/okcvm",
              "the control socket and what lets mounts outlive the daemon; on a tmpfs", Kind::kPath},
    OptionRow{"mount-root", "PATH", "/mnt", "sessions are mounted at PATH/okcvm-<id>", Kind::kPath},
    OptionRow{"socket", "PATH", "", "control socket (default: <run-dir>/control.sock)", Kind::kPath},
    OptionRow{"skills-dir", "PATH", "",
              "directory of skills: each a directory in it, or a link into such a directory (default: "
              "<state-dir>/skills)",
              Kind::kPath, true},
    OptionRow{"session-ttl-days", "DAYS", "7",
              "delete sessions that were not used for so long; 0: only on request (okcvm clean)",
              Kind::kInteger, false, false, 0, 36500},
    OptionRow{"symlink-host-root", "PATH", "", "links in a session may also lead into this host tree",
              Kind::kPath, true},
    OptionRow{"workdir-allow-root", "PATH", "", "directories below PATH may be bound as workdirs",
              Kind::kPath, true},
    OptionRow{"snapshots", "on|off", "on", "take snapshots of sessions", Kind::kChoice},
    OptionRow{"passthrough", "auto|off", "auto", "let the kernel read and write backing files directly",
              Kind::kChoice},
    OptionRow{"log-level", "debug|info|warning|error", "info", "lowest severity to log", Kind::kChoice},
    OptionRow{"log-format", "text|json", "text", "format of the log on standard error", Kind::kChoice},
    OptionRow{"max-connections", "N", "256",
              "most control connections of root, and as many of all others together", Kind::kInteger, false,
              false, 1, 10000},
    OptionRow{"max-connections-per-user", "N", "128", "most control connections of one user other than root",
              Kind::kInteger, false, false, 1, 10000},
    OptionRow{"idle-seconds", "SECONDS", "30", "a control connection that says nothing for so long is closed",
              Kind::kInteger, false, false, 1, 3600},
    OptionRow{"max-sessions", "N", "4096", "most sessions that may exist, mounted or not", Kind::kInteger,
              false, false, 1, kMillion},
    OptionRow{"max-upload-bytes", "BYTES", "17179869184", "largest file to accept over the control socket",
              Kind::kInteger, false, false, 1, kPebibyte},
    OptionRow{"max-checkpoints", "N", "10000", "most checkpoints of one session", Kind::kInteger, false,
              false, 1, kMillion},
    OptionRow{"foreground", "", "", "stay in the foreground (the only mode)", Kind::kFlag},
    OptionRow{"keeper", "", "", "keep the mounts in a small parent process, so that they outlive the daemon",
              Kind::kFlag, false, true},
    OptionRow{"print-config", "", "", "print each value and where it came from, then exit", Kind::kFlag,
              false, true},
    OptionRow{"help", "", "", "print this help, then exit", Kind::kFlag, false, true},
    OptionRow{"help-table", "", "", "print the options one a line for other programs, then exit", Kind::kFlag,
              false, true},
    OptionRow{"version", "", "", "print the version, then exit", Kind::kFlag, false, true},
};

/// The values that one source gave, by option.
using Given = std::map<std::string, std::vector<std::string>, std::less<>>;

const OptionRow* row_named(std::string_view name) {
  for (const auto& row : kTable)
    if (row.name == name) return &row;
  return nullptr;
}

std::string variable_of(std::string_view name) {
  std::string variable = "OKCVM_";
  for (const char c : name)
    variable.push_back(c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c);
  return variable;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t start = 0; start <= text.size();) {
    const auto end = std::min(text.find(separator, start), text.size());
    if (end > start) parts.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

Result<std::int64_t> to_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    return fail(Code::kInvalidRequest, "not a whole number");
  return value;
}

bool is_yes(std::string_view text) {
  return text.empty() || text == "1" || text == "true" || text == "yes" || text == "on";
}
bool is_no(std::string_view text) {
  return text == "0" || text == "false" || text == "no" || text == "off";
}

/// On the command line and in the environment a path may be relative: it is made absolute here, once.
Result<std::string> from_here(const OptionRow& row, const std::string& value) {
  if (row.kind != Kind::kPath || value.starts_with('/')) return value;
  std::error_code error;
  const auto path = std::filesystem::absolute(value, error);
  if (error || !path.is_absolute())
    return fail(Code::kInvalidRequest,
                "it is relative to a working directory that cannot be told: give a path that starts with /");
  return path.string();
}

Result<void> check_value(const OptionRow& row, const std::string& value) {
  if (value.find('\0') != value.npos) return fail(Code::kInvalidRequest, "it contains a NUL byte");
  switch (row.kind) {
    case Kind::kText:
      return {};
    case Kind::kPath:
      if (value.empty()) return fail(Code::kInvalidRequest, "a path is needed");
      return {};
    case Kind::kFlag:
      if (!is_yes(value) && !is_no(value)) return fail(Code::kInvalidRequest, "on or off is needed");
      return {};
    case Kind::kChoice:
      for (const auto& choice : split(row.argument, '|'))
        if (choice == value) return {};
      return fail(Code::kInvalidRequest, "one of " + std::string(row.argument) + " is needed");
    case Kind::kInteger: {
      const auto number = to_integer(value);
      if (number && *number >= row.least && *number <= row.most) return {};
      return fail(Code::kInvalidRequest, "a whole number from " + std::to_string(row.least) + " to " +
                                             std::to_string(row.most) + " is needed");
    }
  }
  return {};
}

Unexpected refused(std::string_view where, std::string_view value, const Error& error) {
  return fail(Code::kInvalidRequest,
              std::string(where) + ": '" + std::string(value) + "' is refused: " + error.message);
}

Result<Given> from_command_line(int argc, const char* const* argv) try {
  po::options_description description;
  for (const auto& row : kTable) {
    const std::string name(row.name);
    if (row.kind == Kind::kFlag)
      description.add_options()(name.c_str(), po::value<std::vector<std::string>>()->zero_tokens());
    else
      description.add_options()(name.c_str(), po::value<std::vector<std::string>>());
  }
  po::command_line_parser parser(argc, argv);
  parser.options(description)
      .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing);
  parser.positional(po::positional_options_description());
  Given given;
  for (const auto& option : parser.run().options) {
    const auto* row = row_named(option.string_key);
    auto& values = given[option.string_key];
    if (row->kind == Kind::kFlag) values.emplace_back("on");
    for (const auto& value : option.value) values.push_back(value);
    if (!row->repeatable && row->kind != Kind::kFlag && values.size() > 1)
      return fail(Code::kInvalidRequest, "--" + option.string_key + " is given more than once");
    for (auto& value : values) {
      if (auto checked = check_value(*row, value); !checked)
        return refused("--" + option.string_key, value, checked.error());
      auto absolute = from_here(*row, value);
      if (!absolute) return refused("--" + option.string_key, value, absolute.error());
      value = std::move(*absolute);
    }
  }
  return given;
} catch (const po::error& error) {
  return fail(Code::kInvalidRequest, std::string(error.what()) + " (see okcvmd --help)");
}

Result<Given> from_environment(const char* const* environment) {
  Given given;
  for (; environment && *environment; ++environment) {
    const std::string_view entry(*environment);
    const auto equals = entry.find('=');
    if (equals == entry.npos) continue;
    for (const auto& row : kTable) {
      if (row.only_command_line || entry.substr(0, equals) != variable_of(row.name)) continue;
      const std::string value(entry.substr(equals + 1));
      auto values = row.repeatable ? split(value, ':') : std::vector<std::string>{value};
      for (auto& one : values) {
        if (auto checked = check_value(row, one); !checked)
          return refused(entry.substr(0, equals), one, checked.error());
        auto absolute = from_here(row, one);
        if (!absolute) return refused(entry.substr(0, equals), one, absolute.error());
        one = std::move(*absolute);
      }
      given[std::string(row.name)] = std::move(values);
    }
  }
  return given;
}

/// `name = value` lines, `#` and `;` comments, sections ignored as headings. A repeatable option may stand on
/// several lines.
Result<Given> from_file(const std::string& path, bool must_exist) {
  std::ifstream file(path);
  if (!file) {
    if (!must_exist && errno == ENOENT) return Given();
    return fail_errno(errno ? errno : EIO, "cannot read " + path);
  }
  Given given;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto text = trimmed(line);
    if (text.empty() || text.front() == '#' || text.front() == ';') continue;
    if (text.front() == '[' && text.back() == ']') continue;
    const std::string where = path + ":" + std::to_string(number);
    const auto equals = text.find('=');
    const auto name = trimmed(text.substr(0, equals));
    const auto* row = row_named(name);
    if (!row || row->only_command_line || name == "config")
      return fail(Code::kInvalidRequest, where + ": unknown option '" + std::string(name) + "'");
    if (equals == text.npos) return fail(Code::kInvalidRequest, where + ": 'name = value' is needed");
    const std::string value(trimmed(text.substr(equals + 1)));
    if (auto checked = check_value(*row, value); !checked) return refused(where, value, checked.error());
    if (row->kind == Kind::kPath && !value.starts_with('/'))
      return refused(
          where, value,
          Error::of(Code::kInvalidRequest,
                    "an absolute path is needed, as this file does not know where okcvmd is started"));
    auto& values = given[std::string(name)];
    if (!row->repeatable && !values.empty())
      return fail(Code::kInvalidRequest, where + ": '" + std::string(name) + "' is given more than once");
    values.push_back(value);
  }
  if (file.bad()) return fail_errno(EIO, "cannot read " + path);
  return given;
}

/// The values of an option and where they came from, first source first.
Options::Origin pick(const OptionRow& row, const Given& command_line, const Given& environment,
                     const Given& file, const std::string& file_name) {
  const std::string name(row.name);
  if (const auto it = command_line.find(name); it != command_line.end())
    return {name, it->second, "command line"};
  if (const auto it = environment.find(name); it != environment.end())
    return {name, it->second, variable_of(name)};
  if (const auto it = file.find(name); it != file.end()) return {name, it->second, file_name};
  if (row.initial.empty()) return {name, {}, "default"};
  return {name, {std::string(row.initial)}, "default"};
}

/// The picked values as the program wants them.
class Values {
 public:
  explicit Values(std::vector<Options::Origin>& origins) : origins_(origins) {}

  Options::Origin& of(std::string_view name) {
    return *std::find_if(origins_.begin(), origins_.end(),
                         [&](const auto& origin) { return origin.name == name; });
  }
  std::string text(std::string_view name) {
    const auto& values = of(name).values;
    return values.empty() ? std::string() : values.front();
  }
  std::filesystem::path path(std::string_view name) { return normal(text(name)); }
  std::vector<std::string> paths(std::string_view name) {
    std::vector<std::string> paths;
    for (const auto& value : of(name).values) paths.push_back(normal(value));
    return paths;
  }
  std::int64_t integer(std::string_view name) { return to_integer(text(name)).value_or(0); }
  bool flag(std::string_view name) { return !of(name).values.empty() && is_yes(text(name)); }
  void default_to(std::string_view name, const std::filesystem::path& value) {
    if (of(name).values.empty()) of(name).values.push_back(value.string());
  }

 private:
  static std::string normal(const std::string& text) {
    auto path = std::filesystem::path(text).lexically_normal().string();
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
  }
  std::vector<Options::Origin>& origins_;
};

}  // namespace

std::span<const OptionRow> option_table() {
  return kTable;
}

Result<Options> read_options(int argc, const char* const* argv, const char* const* environment) {
  auto command_line = from_command_line(argc, argv);
  if (!command_line) return fail(command_line.error());
  auto variables = from_environment(environment);
  if (!variables) return fail(variables.error());
  const auto config = pick(*row_named("config"), *command_line, *variables, {}, {});
  auto file = from_file(config.values.front(), config.source != "default");
  if (!file) return fail(file.error());

  Options options;
  for (const auto& row : kTable)
    options.origins.push_back(pick(row, *command_line, *variables, *file, config.values.front()));
  Values values(options.origins);
  options.config = values.path("config");
  options.state_dir = values.path("state-dir");
  options.run_dir = values.path("run-dir");
  options.mount_root = values.path("mount-root");
  values.default_to("socket", options.run_dir / "control.sock");
  options.socket = values.path("socket");
  values.default_to("skills-dir", options.state_dir / "skills");
  for (auto& path : values.paths("skills-dir")) options.skills_dirs.emplace_back(path);
  options.session_ttl_days = values.integer("session-ttl-days");
  options.symlink_host_roots = values.paths("symlink-host-root");
  options.workdir_allow_roots = values.paths("workdir-allow-root");
  options.snapshots = values.text("snapshots") == "on";
  options.passthrough = values.text("passthrough") == "auto";
  options.log_level = values.text("log-level");
  options.log_format = values.text("log-format");
  options.max_connections = values.integer("max-connections");
  options.max_connections_per_user = values.integer("max-connections-per-user");
  options.idle_seconds = values.integer("idle-seconds");
  options.max_sessions = values.integer("max-sessions");
  options.max_upload_bytes = values.integer("max-upload-bytes");
  options.max_checkpoints = values.integer("max-checkpoints");
  options.keeper = values.flag("keeper");
  options.help = values.flag("help");
  options.help_table = values.flag("help-table");
  options.version = values.flag("version");
  options.print_config = values.flag("print-config");
  return options;
}

void print_help(std::ostream& out) {
  out << "Usage: okcvmd [OPTION]...\n"
         "Mounts a private, policed file system for every agent session and serves the control socket.\n"
         "All but --keeper and what prints and exits may also be given as OKCVM_NAME in the environment\n"
         "or, but for --config, as `name = value` in the INI file. The command line overrides the\n"
         "environment, which overrides the file. Relative paths are taken from the working directory; in\n"
         "the file they must be absolute. Several values of one that may be repeated have a line each in\n"
         "the file; in the environment colons separate them, as in OKCVM_SKILLS_DIR=/a:/b.\n\n";
  for (const auto& row : kTable) {
    std::string left = "  --" + std::string(row.name);
    if (!row.argument.empty()) left += " " + std::string(row.argument);
    if (left.size() < 34) left.resize(34, ' ');
    out << left << "  " << row.help;
    if (!row.initial.empty()) out << " (default: " << row.initial << ")";
    if (row.repeatable) out << "; may be repeated";
    out << "\n";
  }
  out << "\nSignals: TERM and INT stop and unmount; HUP leaves the mounts to the next daemon, where someone "
         "keeps them.\n";
}

void print_help_table(std::ostream& out) {
  for (const auto& row : kTable)
    out << row.name << '\t' << row.argument << '\t' << row.initial << '\t'
        << (row.repeatable ? "repeatable" : "") << '\t' << row.help << '\n';
}

void print_config(const Options& options, std::ostream& out) {
  for (const auto& origin : options.origins) {
    if (row_named(origin.name)->only_command_line) continue;
    if (origin.values.empty()) out << origin.name << " =  # " << origin.source << "\n";
    for (const auto& value : origin.values)
      out << origin.name << " = " << value << "  # " << origin.source << "\n";
  }
}

}  // namespace okcvm::daemon
