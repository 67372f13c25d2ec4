// The worker that owns a model.
import { browserHost } from "./host.js";
import { serve } from "./serve.js";

serve(browserHost());
