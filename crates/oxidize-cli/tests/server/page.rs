//! The chat page and the OpenAPI document.

use super::*;

#[test]
fn all_endpoints_of_the_openapi_document_exist() {
    let server = start(&[]);
    let document = server.get("/openapi.json").ok();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 25, "{}", paths.len());
    for (path, operations) in paths {
        let known = path.replace("{model}", "tiny");
        for method in operations.as_object().unwrap().keys() {
            let reply = match method.as_str() {
                "get" => server.get(&known),
                method => {
                    let (address, method) = (server.address, method.to_uppercase());
                    http::request(address, &method, &known, &[], "{\"unknown\": true}")
                }
            };
            let loads = ["/api/show", "/v1/models/{model}"].contains(&path.as_str());
            let expected = if method == "get" || loads { 200 } else { 400 };
            let wanted = if path == "/infill" || (method == "post" && path == "/lora-adapters") {
                400
            } else {
                expected
            };
            assert_eq!(reply.status, wanted, "{method} {path}: {}", reply.body);
        }
    }
    // Every reference resolves.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(
            document["components"]["schemas"].get(name).is_some(),
            "{name}"
        );
    }
}

#[test]
fn pages_are_self_contained() {
    let server = start(&[]);
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert!(
        page.header("content-security-policy")
            .unwrap()
            .contains("default-src 'self'")
    );
    for text in [&page.body, &server.get("/docs").body] {
        // The server has every file that a page refers to.
        for part in text
            .split(['"'])
            .filter(|part| part.starts_with('/') && part.len() > 1)
        {
            assert_eq!(server.get(part).status, 200, "{part}");
        }
        assert!(!text.contains("http://") && !text.contains("https://"));
    }
}
