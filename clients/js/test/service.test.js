/** Everything for which one running service is enough. */
import "./api.js";
import "./streams.js";
import "./examples.js";
