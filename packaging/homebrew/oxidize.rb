# The template of the Homebrew formula. scripts/homebrew_formula.py fills in what stands between @.
class Oxidize < Formula
  desc "Run large language models on your own machine"
  homepage "@homepage@"
  version "@version@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@url aarch64-apple-darwin@"
      sha256 "@sha256 aarch64-apple-darwin@"
    end
    on_intel do
      url "@url x86_64-apple-darwin@"
      sha256 "@sha256 x86_64-apple-darwin@"
    end
  end

  on_linux do
    on_arm do
      url "@url aarch64-unknown-linux-gnu@"
      sha256 "@sha256 aarch64-unknown-linux-gnu@"
    end
    on_intel do
      url "@url x86_64-unknown-linux-gnu@"
      sha256 "@sha256 x86_64-unknown-linux-gnu@"
    end
  end

  def install
    bin.install "oxidize"
    if File.directory?("completions")
      bash_completion.install "completions/oxidize.bash" => "oxidize"
      zsh_completion.install "completions/_oxidize"
      fish_completion.install "completions/oxidize.fish"
    end
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/oxidize --version")
  end
end
