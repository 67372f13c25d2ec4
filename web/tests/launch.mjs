// Starting Chromium.
import { chromium } from "playwright-core";

// Without its services on the network.
const options = {
  executablePath: process.env.OXIDIZE_CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
};

/** Starts Chromium. */
export function launchChromium() {
  return chromium.launch(options);
}

/** Starts Chromium with a profile on disk, whose quota can be set. `args` are further flags. */
export function launchProfile(directory, args = []) {
  return chromium.launchPersistentContext(directory, { ...options, args: [...options.args, ...args] });
}
